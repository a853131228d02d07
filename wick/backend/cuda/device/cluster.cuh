// Thread block clusters with their distributed shared memory, and programmatic dependent launch (PDL); both from 9.0
// on.
#pragma once

#include <cstdint>

namespace wick {

// Everything that the block's threads wrote to shared memory before is seen by all blocks of the cluster after.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// The same without any promise about memory: the cluster's other blocks are done reading.
__device__ __forceinline__ void cluster_leave() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// cluster_sync() in two halves: the code between them need not wait.
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

}  // namespace wick
