// Launches of kernels: their shape, and what CUDA calls attributes (clusters, programmatic dependent launch,
// cooperative grids).
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "wick/backend/cuda/gpu.h"
#include "wick/backend/cuda/runtime/check.h"

namespace wick {

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  int cluster = 1;           // blocks along x
  bool overlap = false;      // may start before the kernel before it has ended
  bool cooperative = false;  // all blocks run at once, and may wait for each other
};

// PDL where the device has it; the kernel calls wait_for_previous() (device/cluster.cuh).
inline Launch overlapped(const Gpu& gpu, dim3 grid, dim3 block, size_t shared_bytes = 0) {
  return {.grid = grid, .block = block, .shared_bytes = shared_bytes, .overlap = gpu.capability() >= 90};
}

// How many blocks of a launch the device can run at once.
template <class... Parameters>
int blocks_at_once(const Gpu& gpu, void (*kernel)(Parameters...), const Launch& l) {
  int blocks = 0;
  const bool fits =
      (l.shared_bytes <= 48 * 1024 ||
       cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(l.shared_bytes)) == cudaSuccess) &&
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, int(l.block.x * l.block.y), l.shared_bytes) ==
          cudaSuccess;
  if (!fits) cudaGetLastError();  // too much shared memory; no launch has to report it
  return fits ? blocks * gpu.multiprocessors() : 0;
}
// Whether that is all of them.
template <class... Parameters>
bool all_at_once(const Gpu& gpu, void (*kernel)(Parameters...), const Launch& l) {
  return blocks_at_once(gpu, kernel, l) >= int64_t(l.grid.x) * l.grid.y;
}

template <class... Parameters, class... Args>
void launch(const char* name, cudaStream_t stream, const Launch& l, void (*kernel)(Parameters...), Args&&... args) {
  if (l.shared_bytes > 48 * 1024)
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(l.shared_bytes)), name);
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config{};
  config.gridDim = l.grid;
  config.blockDim = l.block;
  config.dynamicSmemBytes = l.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    attributes[config.numAttrs].id = id;
    return attributes[config.numAttrs++].val;
  };
  if (l.cluster > 1) add(cudaLaunchAttributeClusterDimension).clusterDim = {unsigned(l.cluster), 1, 1};
  if (l.overlap) add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
  if (l.cooperative) add(cudaLaunchAttributeCooperative).cooperative = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

}  // namespace wick
