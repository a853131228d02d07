#pragma once

#include <cstring>
#include <functional>
#include <memory>

#include "wick/backend/registry.h"
#include "wick/core/memory.h"

namespace wick::test {

// Host memory as a device's, which counts its transfers. Bytes arrive when they are awaited, and until then there is
// garbage.
class LateDevice final : public Memory {
 public:
  LateDevice() { set_backend(cpu_backend()); }
  void* allocate(size_t bytes) override { return host_memory().allocate(bytes); }
  void release(void* data, size_t bytes) noexcept override { host_memory().release(data, bytes); }
  bool on_host() const override { return true; }
  void write(void* to, const void* host, size_t bytes) override { std::memcpy(to, host, bytes); }
  void read(void* host, const void* from, size_t bytes) override { std::memcpy(host, from, bytes); }
  std::unique_ptr<Readback> read_later(const void* from, size_t bytes) override {
    return host_memory().read_later(from, bytes);
  }
  std::unique_ptr<Transfer> make_transfer(Direction direction) override {
    return std::make_unique<Late>(direction == Direction::to_device ? fetches : sends);
  }

  std::unique_ptr<Transfer> make_staged_transfer(size_t most) override {
    staged_bytes += most;
    return make_transfer(Direction::to_device);
  }

  int fetches = 0, sends = 0;
  size_t staged_bytes = 0;

 private:
  class Late final : public Transfer {
   public:
    explicit Late(int& transfers) : transfers_(transfers) {}
    void begin(void* to, const void* from, size_t bytes) override {
      std::memset(to, 0xff, bytes);
      ++transfers_;
      arrive_ = [=] { std::memcpy(to, from, bytes); };
    }
    void await() override { arrive_(); }

   private:
    int& transfers_;
    std::function<void()> arrive_;
  };
};

}  // namespace wick::test
