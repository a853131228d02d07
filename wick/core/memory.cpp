#include "wick/core/memory.h"

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "wick/core/error.h"

namespace wick {

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

class HostMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* data = std::aligned_alloc(64, rounded ? rounded : 64);
    check(data != nullptr, "out of memory: the CPU could not give {} bytes ({} in use)", bytes, in_use());
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
