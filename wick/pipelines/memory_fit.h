// How the weights of a model are held that draws or writes within a given memory; train/memory_choice.h is the same for
// training.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "wick/pipelines/plan.h"
#include "wick/pipelines/weight_flags.h"

namespace wick {

// One of several ways: whether it fits, and the seconds of a step, of which only ratios mean something.
struct WayCost {
  bool fits;
  double seconds;
};
// Of ways by falling precision the first that fits and whose step is within 1.10 of the fastest that does.
std::optional<size_t> best_way(const std::vector<WayCost>& ways);

// The least number in (low, high] whose way fits; that of `high` does, and is `best`.
template <class Way, class Fits, class WayOf>
Way fewest_that_fit(size_t low, size_t high, Way best, const Fits& fits, const WayOf& way_of) {
  while (low + 1 < high) {
    const size_t middle = (low + high) / 2;
    Way tried = way_of(middle);
    if (fits(tried))
      best = std::move(tried), high = middle;
    else
      low = middle;
  }
  return best;
}

// What a run may take.
struct MemoryRequest {
  size_t size;                         // bytes on the device
  std::optional<HostLimit> host = {};  // if that is limited
  bool keeps_precision = false;        // that of the settings, whatever it is: of a training run that goes on

  template <class Plan>
  bool fits(const Plan& plan) const {
    return plan.total() <= size && (!host || host->allows(plan));
  }
  // "2.0 GiB of the host's memory, more than the 1.0 GiB that --host-memory allows", for the bytes of a plan that does
  // not fit there.
  std::string host_in_words(size_t bytes) const;
};

struct Holding {
  std::optional<DType> quantized = {};      // the type of the blocks' matrices: none where they stay as they are
  size_t streamed = 0;                      // blocks whose weights come from the host
  bool stream_text_encoder = false;         // T5's come from there
  bool staged = false;                      // they lie in ordinary memory there instead of page-locked
  std::shared_ptr<HostCopies> copies = {};  // where several threads draw or write with the same weights

  bool is_streamed() const { return streamed > 0 || stream_text_encoder; }
  BlockSchedule block_schedule() const {
    return BlockSchedule().with_streamed(streamed, staged).with_host_copies(copies);
  }
};

struct HeldPlan {
  Holding holding;
  InferencePlan plan;
};

// What a holding takes: the same for all commands that draw and write.
using PlanOfHolding = std::function<InferencePlan(const Holding&)>;
// That of `holding`, which is staged where the host allows it only so.
HeldPlan plan_held(Holding holding, const std::optional<HostLimit>& host, const PlanOfHolding& plan);

struct InferenceChoices {
  MemoryRequest request;
  std::optional<HeldPlan> best;  // none where nothing fits
  std::vector<HeldPlan> all;     // of each precision the fastest that fits, else the one that takes the least
  // For users: what is taken and what it takes; or what is missing.
  std::string in_words() const;
};

// Weights come from the host only on a device, and only where they must. `precisions` are those that may be taken, by
// falling precision.
InferenceChoices choose_holding(const MemoryRequest& request, const std::vector<std::optional<DType>>& precisions,
                                const PlanOfHolding& plan);
// Those of --memory: as they are, 8 and 4 bits.
std::vector<std::optional<DType>> precisions_for_memory();

}  // namespace wick
