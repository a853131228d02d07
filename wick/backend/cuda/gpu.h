// What the plans of kernels depend on besides shapes. Tests make their own: no device is needed to plan for one.
#pragma once

namespace wick {

class Gpu {
 public:
  Gpu() = default;
  Gpu(int capability, int multiprocessors, int shared_bytes)
      : capability_(capability), multiprocessors_(multiprocessors), shared_bytes_(shared_bytes) {}

  int capability() const { return capability_; }  // 90 for 9.0
  int multiprocessors() const { return multiprocessors_; }
  int shared_bytes() const { return shared_bytes_; }  // of shared memory in a multiprocessor

 protected:
  int capability_ = 0, multiprocessors_ = 0, shared_bytes_ = 0;
};

}  // namespace wick
