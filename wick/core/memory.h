// Where tensors live: one Memory a device, which allocates and counts.
#pragma once

#include <atomic>
#include <cstddef>

namespace wick {

class Backend;

class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* allocate(size_t bytes) = 0;  // at least 64-byte aligned; throws Error when there is no room
  virtual void release(void* data, size_t bytes) noexcept = 0;
  virtual bool on_host() const = 0;  // the CPU may read and write it

  size_t in_use() const { return in_use_; }
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = in_use_.load(); }

  Backend* backend = nullptr;  // computes on this memory; set when the backend is created

 protected:
  void count(size_t bytes);
  void uncount(size_t bytes) noexcept { in_use_ -= bytes; }

 private:
  std::atomic<size_t> in_use_{0}, peak_{0};
};

Memory& host_memory();

}  // namespace wick
