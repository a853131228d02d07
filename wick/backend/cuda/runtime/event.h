// The order of work on two streams, which captures record too.
#pragma once

#include <cuda_runtime.h>

#include "wick/backend/cuda/runtime/check.h"

namespace wick {

class Event {
 public:
  Event() { cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Work enqueued on `later` from now on begins behind what is enqueued on `earlier`.
  void order(cudaStream_t earlier, cudaStream_t later) {
    record(earlier);
    await(later);
  }
  void record(cudaStream_t stream) { cuda_check(cudaEventRecord(event_, stream), "recording an event"); }
  void await(cudaStream_t stream) { cuda_check(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace wick
