// What flags say of frozen weights, for training, drawing and writing alike: --memory, --stream-blocks, --host-memory,
// --fp8-compute.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "wick/backend/backend.h"

namespace wick {

// A number of blocks, or BlockSchedule::kAll for all. Throws UsageError for any other text of `flag`.
size_t parse_blocks(std::string_view flag, const std::string& text);

// The bytes of --memory; none for auto. Throws UsageError for any other text.
std::optional<size_t> parse_memory(const std::string& text);

// Bytes of the host that a run may take: those that are locked for a device (streamed weights, inputs of blocks), and
// together with streamed weights that lie in ordinary memory.
struct HostLimit {
  size_t locked, all;
  size_t devices = 1;  // of one process: the bytes are those of all, and streamed weights are among them once

  HostLimit share_of(size_t runs) const { return {locked / runs, all / runs, devices}; }  // that run beside each other
  template <class Plan>
  bool allows(const Plan& plan) const {
    const size_t bytes = plan.host_of(devices);
    return bytes <= locked && bytes + plan.staged <= all;
  }
};
// The bytes that a plan locks for all devices of its process.
template <class Plan>
size_t locked_by(const Plan& plan, const std::optional<HostLimit>& limit) {
  return plan.host_of(limit ? limit->devices : 1);
}
// That of --host-memory for both; where it is empty, 60 % of what is available may be locked, and 80 % taken in all.
// None where that is not known. Throws UsageError for a text that is no size.
std::optional<HostLimit> host_limit(const std::string& host_memory);
size_t parse_host_memory(const std::string& text);  // of a text that is not empty
// The plan of a run whose streamed weights are page-locked, or, where only that is within the limit, of one that stages
// them in ordinary memory: plan_of(bool staged).
template <class PlanOf>
auto plan_within(const std::optional<HostLimit>& limit, const PlanOf& plan_of) {
  auto locked = plan_of(false);
  if (!limit || limit->allows(locked)) return locked;
  auto staged = plan_of(true);
  return limit->allows(staged) ? staged : locked;
}
// Throws Error where `bytes` are more than may be locked.
void check_locked(size_t bytes, const std::optional<HostLimit>& limit);
// For users: ", with 8.1 GiB on the host, in ordinary memory"; and a sentence on weights that are staged. Empty where
// nothing lies there.
std::string on_host_in_words(size_t locked, size_t staged);
std::string staging_in_words(size_t staged);

// --fp8-compute. Throws UsageError beside a --quantize to another type than fp8 (`quantize` is empty where there is
// none), and on a device that does not multiply in fp8.
void check_fp8_compute(std::string_view quantize);
void check_fp8_compute(const Backend& backend);

// For users: the name of a dtype of weights; "fp8, multiplied in fp8" for fp8_product, which no flag names.
std::string dtype_in_words(DType weights);

}  // namespace wick
