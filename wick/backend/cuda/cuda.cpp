#include "wick/backend/cuda/cuda.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "wick/backend/cuda/linear/fp8.h"
#include "wick/backend/cuda/runtime/cublaslt.h"
#include "wick/backend/cuda/runtime/cudnn.h"
#include "wick/backend/cuda/runtime/pool.h"

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
  pool_->set_backend(*this);
  Cublas::open_early();  // while weights are read
}

CudaBackend::~CudaBackend() {
  cudnn_.reset();
  cublas_.reset();
  pool_.reset();
  cudaStreamDestroy(stream_);
}

namespace {

template <class Library, class... Args>
Library& opened(std::unique_ptr<Library>& library, bool tf32, const Args&... args) {
  if (!library) {
    library = std::make_unique<Library>(args...);
    library->allow_tf32(tf32);
  }
  return *library;
}

}  // namespace

Memory& CudaBackend::memory() { return *pool_; }
Cublas& CudaBackend::cublas() { return opened(cublas_, tf32_, stream_, capability_); }
Cudnn& CudaBackend::cudnn() { return opened(cudnn_, tf32_, stream_); }

void CudaBackend::warm_up() {
  // Joined before static destructors run, as Cublas::open_early's.
  thread_local const std::jthread opening([device = device_, capability = capability_] {
    try {
      cuda_check(cudaSetDevice(device), "cudaSetDevice");
      Cublas::warm_up(capability);
      Cudnn::warm_up();
    } catch (const Error&) {  // the first caller that needs them gets the error
    }
  });
}

bool CudaBackend::multiplies_fp8() const { return wick::multiplies_fp8(static_cast<const Gpu&>(*this)); }

void CudaBackend::allow_tf32(bool allow) {
  tf32_ = allow;
  if (cublas_) cublas_->allow_tf32(allow);
  if (cudnn_) cudnn_->allow_tf32(allow);
}

}  // namespace wick
