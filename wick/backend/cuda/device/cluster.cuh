// Thread block clusters, the memory their blocks share, and launches that overlap the kernel before (9.0 on).
#pragma once

#include <cstdint>

#include "wick/backend/cuda/cuda.h"

namespace wick {

// Everything that the block's threads wrote to shared memory before is seen by all blocks of the cluster after.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// The same without any promise about memory: the others are done reading.
__device__ __forceinline__ void cluster_leave() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// cluster_sync() in two halves: what lies between them need not wait.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Values that travel by themselves, to `local` as it lies in block `rank` of the cluster, whose barrier (barriers.cuh)
// counts the bytes. All blocks of the cluster must meet between the barrier's init and the first push().
__device__ __forceinline__ void push(float* local, const float4& value, uint64_t* barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 to, counter;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3, %4, %5, %6}, [counter];\n}" ::"r"(
          uint32_t(__cvta_generic_to_shared(local))),
      "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(rank), "r"(__float_as_uint(value.x)),
      "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)), "r"(__float_as_uint(value.w))
      : "memory");
#endif
}

// `local`, an address of this block's shared memory, as it lies in block `rank` of the cluster.
template <class T>
__device__ __forceinline__ const T* cluster_map(const T* local, int rank) {
#if __CUDA_ARCH__ >= 900
  uint64_t there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<uint64_t>(local)), "r"(rank));
  return reinterpret_cast<const T*>(there);
#else
  return local;
#endif
}

// The kernel that follows may start (its wait below still waits for this grid to end).
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits for the kernel before, where this one was launched to overlap it.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  int cluster = 1;           // blocks along x
  bool overlap = false;      // may start before the kernel before it has ended
  bool cooperative = false;  // all blocks run at once, and may wait for each other
};

// How many blocks of a launch the device can run at once.
template <class... Parameters>
int blocks_at_once(const CudaBackend& cuda, void (*kernel)(Parameters...), const Launch& l) {
  int blocks = 0;
  const bool fits =
      (l.shared_bytes <= 48 * 1024 ||
       cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(l.shared_bytes)) == cudaSuccess) &&
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, int(l.block.x * l.block.y), l.shared_bytes) ==
          cudaSuccess;
  if (!fits) cudaGetLastError();  // too much shared memory; no launch has to report it
  return fits ? blocks * cuda.multiprocessors() : 0;
}
// Whether that is all of them.
template <class... Parameters>
bool all_at_once(const CudaBackend& cuda, void (*kernel)(Parameters...), const Launch& l) {
  return blocks_at_once(cuda, kernel, l) >= int64_t(l.grid.x) * l.grid.y;
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
  if (l.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = unsigned(l.cluster);
    attributes[config.numAttrs].val.clusterDim.y = attributes[config.numAttrs].val.clusterDim.z = 1;
    ++config.numAttrs;
  }
  if (l.overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  if (l.cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs].val.cooperative = 1;
    ++config.numAttrs;
  }
  cuda_check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

}  // namespace wick
