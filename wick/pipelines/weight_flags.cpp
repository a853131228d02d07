#include "wick/pipelines/weight_flags.h"

#include <fmt/format.h>

#include "wick/autograd/block_schedule.h"
#include "wick/backend/registry.h"
#include "wick/core/error.h"
#include "wick/io/byte_size.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"

namespace wick {

size_t parse_blocks(std::string_view flag, const std::string& text) {
  if (text == "all") return BlockSchedule::kAll;
  const bool is_number = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == text.npos;
  check_usage(is_number, "{}: expected a number of blocks or all, found {}", flag, quote(text));
  return size_t(std::stoull(text));
}

std::optional<size_t> parse_memory(const std::string& text) {
  if (text == "auto") return {};
  const std::optional<size_t> size = parse_byte_size(text);
  check_usage(size.has_value(), "--memory: expected a size like 12GiB or 11500MB, or auto, found {}", quote(text));
  return size;
}

size_t parse_host_memory(const std::string& text) {
  const std::optional<size_t> size = parse_byte_size(text);
  check_usage(size.has_value(), "--host-memory: expected a size like 12GiB or 11500MB, found {}", quote(text));
  return *size;
}

std::optional<HostLimit> host_limit(const std::string& host_memory) {
  if (!host_memory.empty()) {
    const size_t size = parse_host_memory(host_memory);
    return HostLimit{size, size};
  }
  const std::optional<size_t> free = free_memory("cpu");
  return free ? std::optional(HostLimit{*free / 10 * 6, *free / 10 * 8}) : std::nullopt;
}

void check_locked(size_t bytes, const std::optional<HostLimit>& limit) {
  check(!limit || bytes <= limit->locked,
        "this run would lock {} of the host's memory, where {} may be; fewer --stream-blocks or a smaller --quantize "
        "need less, --host-memory allows more",
        readable_bytes(bytes), readable_bytes(limit ? limit->locked : 0));
}

std::string on_host_in_words(size_t locked, size_t staged) {
  if (locked + staged == 0) return {};
  return fmt::format(", with {} on the host{}", readable_bytes(locked + staged),
                     staged > 0 ? ", in ordinary memory" : "");
}

std::string staging_in_words(size_t staged) {
  if (staged == 0) return {};
  return fmt::format(
      "Streamed weights take {} of the host's memory, more than may be page-locked: they lie in ordinary memory, from "
      "which they come more slowly.",
      readable_bytes(staged));
}

void check_fp8_compute(std::string_view quantize) {
  check_usage(quantize.empty() || quantize == name_of(DType::fp8),
              "--fp8-compute: multiplies matrices that are kept in fp8; expected no --quantize or fp8, found {}",
              quantize);
}

void check_fp8_compute(const Backend& backend) {
  check_usage(backend.multiplies_fp8(),
              "--fp8-compute: expected a device with tensor cores for fp8 (8.9 and later), or the CPU, found {}",
              backend.name());
}

std::string dtype_in_words(DType weights) {
  return weights == DType::fp8_product ? "fp8, multiplied in fp8" : std::string(name_of(weights));
}

}  // namespace wick
