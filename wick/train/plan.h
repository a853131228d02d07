// The memory of a training run, before anything is loaded: the run itself, its model, tape and optimizer, takes one
// step on a backend that only counts.
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "wick/autograd/block_schedule.h"
#include "wick/backend/counting.h"
#include "wick/pipelines/weight_flags.h"
#include "wick/train/buckets.h"
#include "wick/train/config.h"

namespace wick {

struct MemoryPlan {                // bytes
  std::string what;                // as the run describes itself: "A LoRA of rank 32 on 722 modules, 42.6 M parameters"
  std::string about_weights = {};  // a note for users, see Task
  Size bucket;                     // of pictures, or a row of text: its tokens x 1
  DeviceKind device;
  int64_t trained = 0;                // numbers in the trained parameters
  size_t state = 0;                   // of a state file, without its header
  BlockSchedule block_schedule = {};  // the blocks that --checkpoint-blocks asks for

  // Tensors, and the scratch of kernels where that weighs.
  size_t weights, adapter, optimizer;  // the last: moments and averages of --ema, of shards the largest; sums of
                                       // gradients where a step has several batches, here or on other ranks
  size_t activations;                  // a step adds these at its peak, gradients included
  size_t encoding;  // the peak before the first step, while the frozen encoders run: everything together
  size_t previews;  // likewise between steps, while previews are made; 0 without --sample-prompts
  size_t taken;     // by the device's Memory at the most: the largest of the three, and the gaps between tensors

  size_t host = 0;      // on the host, page-locked for a device: weights that are streamed, and inputs of blocks
  size_t host_own = 0;  // of these, what each device of a process needs for itself: all but the streamed weights
  size_t staged = 0;  // on the host, in ordinary memory: weights that are streamed, where more than may be page-locked
  size_t collectives = 0;  // taken past the device's Memory where several ranks share a step
  size_t host_sums = 0;    // page-locked for each device: gradients that are summed through the host
  size_t saving = 0;       // of rank 0 on its host, in ordinary memory, while it saves: states that other ranks keep
  StepCost cost = {};      // of a step
  size_t blocks = 0;       // that the model has, to be recomputed or not

  double seconds() const { return cost.seconds; }
  size_t host_of(size_t devices) const {  // page-locked by one process
    return host + (devices - 1) * host_own + devices * host_sums;
  }
  size_t step() const { return weights + adapter + optimizer + activations; }
  size_t gaps() const { return taken - std::min(taken, std::max({step(), encoding, previews})); }
  // The peak of the device's Memory, and with memory taken outside it: on CUDA, as nvidia-smi shows it.
  size_t peak() const { return taken + device.workspace; }
  // Sums of gradients over so many devices would keep a device's link to the host busy for a twentieth of a step at
  // most, and no weights are streamed over it.
  bool are_sums_light(int devices) const;
  size_t beside() const { return device.context + collectives; }
  size_t total() const { return peak() + beside(); }
};

// The largest that the resolution allows, of equal areas the one that is nearest to a square; of text a row.
Size largest_bucket(const TrainConfig& config, const Checkpoint& model);

// For one of config.ranks, with batches of the largest bucket that the resolution allows, or of `bucket`. config.device
// is left alone. `costs` are block_costs(), if they are known. Streamed weights are staged where the host's limit, the
// rank's share of it, allows them only so.
MemoryPlan plan_memory(const TrainConfig& config, const Checkpoint& model, const DeviceKind& device,
                       std::optional<Size> bucket = {}, const std::vector<BlockCost>* costs = nullptr,
                       const std::optional<HostLimit>& host = {});
// What the blocks of a model cost in a step, in the order in which they run; plans of the same
// dtype share them.
std::vector<BlockCost> block_costs(const TrainConfig& config, const Checkpoint& model, const DeviceKind& device,
                                   Size bucket);

// The same run with one setting changed that saves memory, and its memory then; the most saving first. Where there are
// several, the last row has all of them together.
struct Alternative {
  std::string flags;  // "--gradient-checkpointing"
  size_t total;
};
std::vector<Alternative> alternatives(const TrainConfig& config, const Checkpoint& model, const MemoryPlan& plan);
// "--gradient-checkpointing would save 9.6 GiB, --batch-size 1 4.1 GiB", for errors where so many bytes are missing: of
// those that save a material part of them, the most saving first; where none is enough, --memory or smaller pictures or
// texts if the run fits with them ("--resolution 512 would need 9.8 GiB"), or else a smaller model.
std::string savings(const TrainConfig& config, const Checkpoint& model, const MemoryPlan& plan, size_t missing);

// Throws Error where the plan locks more of the host's memory than may be, or where rank 0 takes more while it saves.
void check_host(const MemoryPlan& plan, const std::optional<HostLimit>& host);

// Throws Error where `available` bytes are too few for the plan. `device` is its name: "cuda:0".
void check_fits(const TrainConfig& config, const Checkpoint& model, const MemoryPlan& plan, std::string_view device,
                size_t available);

}  // namespace wick
