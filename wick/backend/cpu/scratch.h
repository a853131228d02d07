// Working memory of the CPU kernels. Each thread keeps the blocks that it released, up to a bound, so that a training
// step allocates nothing once it is warm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace wick {

class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t floats);  // 64-byte aligned, not initialised
  ~Scratch();
  Scratch(Scratch&& other) noexcept { swap(other); }
  Scratch& operator=(Scratch&& other) noexcept {
    swap(other);
    return *this;
  }

  float* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void swap(Scratch& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  float* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace wick
