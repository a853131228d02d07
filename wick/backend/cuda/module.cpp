// The one thing that libwick-cuda.so exports.
#include "wick/backend/module.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/cuda/kernels.h"
#include "wick/backend/cuda/runtime/cublaslt.h"
#include "wick/backend/cuda/runtime/cudnn.h"
#include "wick/backend/cuda/runtime/links.h"
#include "wick/backend/cuda/runtime/nccl.h"

namespace wick {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

int device_count(std::string& problem) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0)
    problem = "no NVIDIA driver was found";
  else if (status == cudaErrorInsufficientDriver)
    problem = fmt::format("the driver knows CUDA {} and Wick was built with {}; a newer driver helps",
                          version_text(driver), version_text(CUDART_VERSION));
  else
    problem = fmt::format("the driver found no CUDA device ({})", cudaGetErrorString(status));
  return 0;
}

Backend& open(int device) {
  static std::mutex mutex;
  static std::map<int, CudaBackend*> all;  // outlive every static tensor
  const std::lock_guard lock(mutex);
  CudaBackend*& opened = all[device];
  if (!opened) opened = new CudaBackend(device);
  cuda_check(cudaSetDevice(device), "cudaSetDevice");  // of the calling thread, which may not have made it
  return *opened;
}

// On a thread of its own, whose current device is nobody else's: to go back to another one would make a context there
// too.
cudaError_t find_free_bytes(int device, size_t& free) {
  cudaError_t status{};
  std::thread([&] {
    size_t total = 0;
    status = cudaSetDevice(device);
    if (status == cudaSuccess) status = cudaMemGetInfo(&free, &total);
    cudaGetLastError();
  }).join();
  return status;
}

std::optional<size_t> free_bytes(int device) {
  size_t free = 0;
  return find_free_bytes(device, free) == cudaSuccess ? std::optional(free) : std::nullopt;
}

DeviceReport report_of(int device, bool detailed) {
  cudaDeviceProp p{};
  cuda_check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  DeviceReport report{.name = fmt::format("cuda:{}", device),
                      .model = p.name,
                      .architecture = fmt::format("{}.{}", p.major, p.minor),
                      .total_bytes = p.totalGlobalMem,
                      .free_bytes = {},
                      .kernels = "",
                      .problem = ""};
  if (p.major * 10 + p.minor < 75) report.problem = "Wick needs compute capability 7.5 or newer";
  if (!detailed) return report;
  const Gpu gpu(capability_of(p), p.multiProcessorCount, int(p.sharedMemPerMultiprocessor));
  report.kernels = describe_kernels(gpu, Cudnn::found());
  size_t free = 0;
  if (const cudaError_t status = find_free_bytes(device, free); status != cudaSuccess)
    report.problem = cudaGetErrorString(status);
  else
    report.free_bytes = free;
  return report;
}

BackendReport report(bool detailed) {
  BackendReport r;
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver) r.driver = fmt::format("CUDA {}", version_text(driver));
  const int count = device_count(r.problem);
  for (int i = 0; i < count; ++i) r.devices.push_back(report_of(i, detailed));
  if (!detailed) return r;
  r.libraries = {fmt::format("CUDA runtime {} (built in)", version_text(CUDART_VERSION)), Cublas::describe(),
                 Cudnn::describe(), describe_nccl()};
  r.links = describe_links(count);
  return r;
}

constexpr BackendModule kModule{WICK_BUILD_ID, device_count, open, report, free_bytes};

}  // namespace
}  // namespace wick

extern "C" __attribute__((visibility("default"))) const wick::BackendModule* wick_backend_module() {
  return &wick::kModule;
}
