// The properties of a device on which plans of kernels depend besides shapes. Tests make their own, without a device.
#pragma once

namespace wick {

class Gpu {
 public:
  Gpu() = default;
  Gpu(int capability, int multiprocessors, int shared_bytes)
      : capability_(capability), multiprocessors_(multiprocessors), shared_bytes_(shared_bytes) {}

  int capability() const { return capability_; }  // 90 for 9.0
  int multiprocessors() const { return multiprocessors_; }
  int shared_bytes() const { return shared_bytes_; }  // shared memory of an SM

 protected:
  int capability_ = 0, multiprocessors_ = 0, shared_bytes_ = 0;
};

}  // namespace wick
