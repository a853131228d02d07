// A captured CUDA graph.
#include "wick/backend/cuda/cuda.h"
#include "wick/backend/cuda/runtime/peers.h"

namespace wick {
namespace {

class GraphReplay final : public Replay {
 public:
  GraphReplay(cudaGraph_t graph, cudaStream_t stream, Memory& memory, bool waits_for_peers)
      : stream_(stream), memory_(memory), waits_for_peers_(waits_for_peers) {
    cuda_check(cudaGraphInstantiate(&executable_, graph, 0), "instantiating a CUDA graph");
    cuda_check(cudaGraphUpload(executable_, stream_), "uploading a CUDA graph");
  }
  ~GraphReplay() override { cudaGraphExecDestroy(executable_); }
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;
  void run() override {
    memory_.rest();
    if (waits_for_peers_) meet_peers();
    cuda_check(cudaGraphLaunch(executable_, stream_), "launching a CUDA graph");
    if (waits_for_peers_) meet_peers();
  }

 private:
  cudaStream_t stream_;
  Memory& memory_;
  bool waits_for_peers_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

// Relaxed: the arena may have to ask the driver for more, which the stricter modes forbid.
std::unique_ptr<Replay> CudaBackend::capture(const std::function<void()>& work) {
  memory().rest();
  cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "beginning a capture");
  cudaGraph_t graph = nullptr;
  try {
    work();
    memory().rest();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  cuda_check(cudaStreamEndCapture(stream_, &graph), "ending a capture");
  auto replay = std::make_unique<GraphReplay>(graph, stream_, memory(), has_captured_waits());
  cudaGraphDestroy(graph);
  return replay;
}

}  // namespace wick
