// Working memory of the CPU kernels. Each thread keeps the blocks that it released, up to a bound, so that a training
// step allocates nothing once it is warm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace wick {

class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t floats);  // 64-byte aligned, not initialised

  float* data() const { return data_.get(); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  struct GiveBack {
    size_t bytes;
    void operator()(float* data) const noexcept;
  };
  std::unique_ptr<float, GiveBack> data_;
};

}  // namespace wick
