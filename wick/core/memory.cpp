#include "wick/core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "wick/core/error.h"

namespace wick {
namespace {
thread_local Purpose current_purpose = Purpose::activations;
}

const char* name_of(Purpose purpose) {
  constexpr const char* kNames[kPurposes] = {"activations", "weights", "adapter", "optimizer", "data"};
  return kNames[size_t(purpose)];
}

MemoryScope::MemoryScope(Purpose purpose) : outer_(current_purpose) { current_purpose = purpose; }
MemoryScope::~MemoryScope() { current_purpose = outer_; }
Purpose MemoryScope::current() { return current_purpose; }

std::string readable_bytes(size_t bytes) {
  const char* unit = "B";
  double value = double(bytes);
  for (const char* larger : {"KiB", "MiB", "GiB"})
    if (value >= 1000) {
      value /= 1024;
      unit = larger;
    }
  return fmt::format("{:.{}f} {}", value, *unit == 'B' ? 0 : 1, unit);
}

std::string Memory::holdings() const {
  std::string text;
  for (const Purpose p : {Purpose::weights, Purpose::adapter, Purpose::optimizer, Purpose::activations, Purpose::data})
    if (held(p) > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(p), readable_bytes(held(p)));
  return text.empty() ? "nothing" : text;
}

void Memory::fill(const std::vector<Filling>& fillings) {
  for (const auto& [to, bytes, source] : fillings) {
    if (on_host()) {
      source(to, 0, bytes);
      continue;
    }
    std::vector<char> all(bytes);
    source(all.data(), 0, bytes);
    write(to, all.data(), bytes);
  }
}

void Memory::count(size_t bytes) {
  const size_t now = in_use_ += bytes;
  for (size_t seen = peak_; seen < now && !peak_.compare_exchange_weak(seen, now);) {
  }
}

namespace {

class Copied final : public Readback {
 public:
  explicit Copied(std::vector<char> bytes) : bytes_(std::move(bytes)) {}
  const void* data() override { return bytes_.data(); }

 private:
  std::vector<char> bytes_;
};

constexpr size_t kHugePage = size_t{2} << 20;

class HostMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override {
    // Large weights lie on huge pages where the system has them: what reads all of them for every token need not look
    // up an address every 4 KiB.
    const bool huge = bytes >= 2 * kHugePage && MemoryScope::current() == Purpose::weights;
    const size_t alignment = huge ? kHugePage : 64, rounded = (std::max<size_t>(bytes, 1) + 63) / 64 * 64;
    void* data = std::aligned_alloc(alignment, rounded);
    if (data == nullptr)
      throw OutOfMemory(
          fmt::format("out of memory: the CPU could not give {}; in use: {}", readable_bytes(bytes), holdings()));
    if (huge) ::madvise(data, rounded, MADV_HUGEPAGE);
    count(bytes);
    return data;
  }
  void release(void* data, size_t bytes) noexcept override {
    std::free(data);
    uncount(bytes);
  }
  bool on_host() const override { return true; }
  void write(void* to, const void* host, size_t bytes) override { std::memcpy(to, host, bytes); }
  void read(void* host, const void* from, size_t bytes) override { std::memcpy(host, from, bytes); }
  std::unique_ptr<Readback> read_later(const void* from, size_t bytes) override {
    const char* begin = static_cast<const char*>(from);
    return std::make_unique<Copied>(std::vector<char>(begin, begin + bytes));
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory* memory = new HostMemory;  // outlives every static tensor
  return *memory;
}

}  // namespace wick
