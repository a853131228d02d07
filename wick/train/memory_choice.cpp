#include "wick/train/memory_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "wick/backend/registry.h"

namespace wick {
namespace {

std::vector<Quantize> precisions(const TrainConfig& config, bool keeps) {
  if (keeps || config.quantize != Quantize::none || config.train != TrainMode::lora) return {config.quantize};
  return {Quantize::none, Quantize::int8, Quantize::nf4_double};
}

// A run by its precision and its recomputed blocks.
class Ways {
 public:
  Ways(const TrainConfig& config, const Checkpoint& model, const DeviceKind& device, Size bucket)
      : config_(config), model_(model), device_(device), bucket_(bucket) {}

  MemoryChoice way(Quantize precision, size_t blocks) const {
    MemoryChoice choice{.config = config_};
    choice.config.quantize = precision;
    if (precision != Quantize::none && choice.config.dtype == DType::f32) choice.config.dtype = DType::bf16;
    choice.config.checkpoint_blocks = std::to_string(blocks);
    choice.plan = plan_memory(choice.config, model_, device_, bucket_);
    choice.blocks = blocks;
    choice.seconds = choice.plan.seconds();
    return choice;
  }

  // The fewest blocks with which it fits, else the number that takes the least.
  MemoryChoice fitted(Quantize precision, size_t size) const {
    if (config_.checkpoint_blocks != "0") return by_hand(precision);
    MemoryChoice none = way(precision, 0);
    if (none.plan.total() <= size) return none;
    const size_t blocks = none.plan.blocks;
    MemoryChoice most = way(precision, blocks), best = most;
    // The last block is the first that backward comes to: to recompute it frees nothing.
    if (blocks > 1)
      if (MemoryChoice fewer = way(precision, blocks - 1); fewer.plan.total() <= best.plan.total()) best = fewer;
    if (best.plan.total() > size) return best;
    for (size_t low = 0, high = best.blocks; low + 1 < high;) {
      const size_t middle = (low + high) / 2;
      MemoryChoice tried = way(precision, middle);
      if (tried.plan.total() <= size)
        best = std::move(tried), high = middle;
      else
        low = middle;
    }
    return best;
  }

 private:
  MemoryChoice by_hand(Quantize precision) const {
    if (config_.checkpoint_blocks != "all") return way(precision, size_t(std::stoull(config_.checkpoint_blocks)));
    return way(precision, way(precision, 0).plan.blocks);
  }

  const TrainConfig& config_;
  const Checkpoint& model_;
  const DeviceKind& device_;
  Size bucket_;
};

std::string base_in_words(const TrainConfig& config) {
  return std::string(config.quantize == Quantize::none ? name_of(config.dtype) : name_of(config.quantize));
}

std::string way_in_words(const MemoryChoice& choice) {
  const std::string blocks = choice.blocks == 0 ? "no block"
                             : choice.blocks == choice.plan.blocks
                                 ? fmt::format("all {} blocks", choice.blocks)
                                 : fmt::format("{} of {} blocks", choice.blocks, choice.plan.blocks);
  return fmt::format("the base in {} and {} computed twice", base_in_words(choice.config), blocks);
}

}  // namespace

const MemoryChoice& MemoryChoices::smallest() const {
  return *std::ranges::min_element(precisions, {}, [](const MemoryChoice& c) { return c.plan.total(); });
}

std::string MemoryChoices::in_words() const {
  if (!best) {
    const MemoryChoice& least = smallest();
    const bool encodes = least.plan.encoding > least.plan.step();
    return fmt::format("this run needs {} at least, {} more, with {}{}", readable_bytes(least.plan.total()),
                       readable_bytes(least.plan.total() - size), way_in_words(least),
                       encodes ? "; most of it while pictures and captions are encoded, before the first step" : "");
  }
  std::string text = fmt::format("{} with {}", readable_bytes(best->plan.total()), way_in_words(*best));
  for (const MemoryChoice& other : precisions) {
    if (other.config.quantize == best->config.quantize) continue;
    const bool fits = other.plan.total() <= size;
    text += fmt::format("; {} {} {}", base_in_words(other.config), fits ? "takes" : "would need",
                        readable_bytes(other.plan.total()));
    if (fits) text += fmt::format(" and {:.2f} times as long", other.seconds / best->seconds);
  }
  return text;
}

MemoryChoices choose_for_memory(const MemoryRequest& request, TrainConfig config, const Checkpoint& model,
                                const DeviceKind& device, std::optional<Size> bucket) {
  if (device.is_device && config.dtype == DType::f32) config.dtype = DType::bf16;
  if (!bucket) bucket = plan_memory(config, model, device).bucket;
  const size_t size = request.size;
  MemoryChoices choices{.size = size};
  const Ways ways(config, model, device, *bucket);
  for (const Quantize precision : precisions(config, request.keeps_precision))
    choices.precisions.push_back(ways.fitted(precision, size));
  double fastest = 0;
  for (const MemoryChoice& choice : choices.precisions)
    if (choice.plan.total() <= size) fastest = fastest == 0 ? choice.seconds : std::min(fastest, choice.seconds);
  for (const MemoryChoice& choice : choices.precisions) {
    const bool is_taken = choice.plan.total() <= size && choice.seconds <= 1.10 * fastest;
    if (is_taken && !choices.best) choices.best = choice;
  }
  return choices;
}

std::vector<size_t> memory_sizes(const TrainConfig& config, std::string_view device) {
  std::vector<size_t> sizes;
  for (const std::optional<size_t>& size : asked_memory(config)) {
    const std::optional<size_t> found = size ? size : free_memory(device);
    check_usage(found.has_value(), "--memory auto: expected a device that is here, found {}", device);
    sizes.push_back(*found);
  }
  return sizes;
}

}  // namespace wick
