// --memory: among the ways in which a run can be made to fit into a memory, the one that is taken.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wick/pipelines/memory_fit.h"
#include "wick/train/plan.h"

namespace wick {

struct MemoryChoice {
  // With a precision of the frozen base, a number of blocks that are recomputed, one of blocks whose weights come from
  // the host, and whether T5's do.
  TrainConfig config;
  MemoryPlan plan;
  size_t blocks = 0, streamed = 0;  // those numbers
  bool host_is_full = false;        // fewer blocks are streamed than the model has, since the host may hold no more
  double seconds = 0;               // of a step, by what is counted (MemoryPlan::seconds); only ratios mean something
};

// The plans of one model on one device that were made so far, by their settings: the ways of several sizes and batches
// share most of theirs.
class KnownPlans {
 public:
  // `before` is called before each new plan.
  KnownPlans(Checkpoint model, DeviceKind device, std::function<void()> before = {})
      : model_(std::move(model)), device_(std::move(device)), before_(std::move(before)) {}

  const Checkpoint& model() const { return model_; }
  const DeviceKind& device() const { return device_; }
  const MemoryPlan& plan(const TrainConfig& config, Size bucket, const std::optional<HostLimit>& host);

 private:
  const std::vector<BlockCost>& costs(const TrainConfig& config, Size bucket);

  Checkpoint model_;
  DeviceKind device_;
  std::function<void()> before_;
  std::map<std::string, MemoryPlan> plans_;
  std::map<std::string, std::vector<BlockCost>> costs_;
};

struct MemoryChoices {
  MemoryRequest request;
  size_t unfitted;                       // bytes that the run would take as it was asked for
  std::optional<MemoryChoice> best;      // none where nothing fits
  std::vector<MemoryChoice> precisions;  // of each precision the fastest that fits, else the one that takes the least

  const MemoryChoice& smallest() const;
  // For users: what is taken, and what others would need; or what is missing.
  std::string in_words() const;
};

// The highest precision of the base (as it is, 8, 4 bits) whose step is within 1.10 of the fastest that fits, and
// within it the fastest, of equally fast ones that with the least on the host. Settings by hand stand: --quantize,
// --checkpoint-blocks, --stream-blocks. On a device weights in f32 become bf16. The optimizer, the rank and the batch
// are never changed.
MemoryChoices choose_for_memory(const MemoryRequest& request, TrainConfig config, KnownPlans& known,
                                std::optional<Size> bucket = {});

// The largest batch, a power of two up to `most`, that fits and in which each picture or row costs at most 1.05 times
// what one alone does; 1 where none fits. With --memory it is fitted as above, in the precision that one alone takes.
int64_t batch_that_fits(const MemoryRequest& request, TrainConfig config, KnownPlans& known,
                        std::optional<Size> bucket = {}, int64_t most = 64);

// The sizes of --memory, in bytes; auto is `free`, what is free on the device. Throws UsageError where it is not here.
std::vector<size_t> memory_sizes(const TrainConfig& config, std::string_view device, std::optional<size_t> free);

}  // namespace wick
