#include "wick/backend/cuda/cuda.h"

#include <algorithm>
#include <cstdlib>

#include "wick/backend/cuda/runtime/cublaslt.h"
#include "wick/backend/cuda/runtime/cudnn.h"

namespace wick {

int capability_of(const cudaDeviceProp& properties) {
  const int own = 10 * properties.major + properties.minor;
  const char* const lower = std::getenv("WICK_CUDA_CAPABILITY");
  return lower ? std::min(own, std::atoi(lower)) : own;
}

CudaBackend::CudaBackend(int device) : device_(device), name_(fmt::format("cuda:{}", device)) {
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  check(10 * properties.major + properties.minor >= 75,
        "{} is a {} of compute capability {}.{}; Wick needs 7.5 (Turing) or newer", name_, properties.name,
        properties.major, properties.minor);
  capability_ = capability_of(properties);
  multiprocessors_ = properties.multiProcessorCount;
  shared_bytes_ = int(properties.sharedMemPerMultiprocessor);
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  pool_ = std::make_unique<Pool>(device, stream_);
  pool_->backend = this;
  Cublas::open_early();  // while weights are read
}

CudaBackend::~CudaBackend() {
  cudnn_.reset();
  cublas_.reset();
  pool_.reset();
  cudaStreamDestroy(stream_);
}

Cublas& CudaBackend::cublas() {
  if (!cublas_) {
    cublas_ = std::make_unique<Cublas>(stream_, capability_);
    cublas_->allow_tf32(tf32_);
  }
  return *cublas_;
}

Cudnn& CudaBackend::cudnn() {
  if (!cudnn_) {
    cudnn_ = std::make_unique<Cudnn>(stream_);
    cudnn_->allow_tf32(tf32_);
  }
  return *cudnn_;
}

void CudaBackend::allow_tf32(bool allow) {
  tf32_ = allow;
  if (cublas_) cublas_->allow_tf32(allow);
  if (cudnn_) cudnn_->allow_tf32(allow);
}

}  // namespace wick
