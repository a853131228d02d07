#include "wick/train/memory_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace wick {
namespace {

std::vector<Quantize> precisions(const TrainConfig& config, bool keeps) {
  if (keeps || config.quantize != Quantize::none || config.train != TrainMode::lora) return {config.quantize};
  return {Quantize::none, Quantize::int8, Quantize::nf4_double};
}

// A run by its precision, its recomputed and its streamed blocks.
class Ways {
 public:
  Ways(const TrainConfig& config, KnownPlans& known, Size bucket, const MemoryRequest& request)
      : config_(config), known_(known), bucket_(bucket), request_(request) {}

  bool fits(const MemoryChoice& choice) const { return request_.fits(choice.plan); }

  // The fastest that fits, else the one that takes the least.
  MemoryChoice fitted(Quantize precision) const {
    TrainConfig config = config_;
    config.quantize = precision;
    if (precision != Quantize::none && config.dtype == DType::f32) config.dtype = DType::bf16;
    MemoryChoice resident = with_streamed(config, given(config.stream_blocks));
    if (!known_.device().is_device || (fits(resident) && resident.blocks == 0)) return resident;
    if (!fits(resident) && encodes_too_much(resident)) {
      config.stream_text_encoder = true;
      resident = with_streamed(config, given(config.stream_blocks));
    }
    if (!fits(resident)) resident = with_checkpoints_on_host(resident);
    return config.stream_blocks == "0" ? streamed(resident.config, resident) : resident;
  }

 private:
  auto fitting() const {
    return [this](const MemoryChoice& choice) { return fits(choice); };
  }
  // Is it the encoders that take too much, those of text among them?
  bool encodes_too_much(const MemoryChoice& choice) const {
    const MemoryPlan& plan = choice.plan;
    return plan.encoding + plan.device.workspace + plan.beside() > request_.size &&
           kind_of(known_.model()) == ModelKind::pictures;
  }

  static std::optional<size_t> given(const std::string& blocks) {
    return blocks == "all" ? std::nullopt : std::optional(size_t(std::stoull(blocks)));
  }

  MemoryChoice way(TrainConfig config, std::optional<size_t> blocks, std::optional<size_t> streamed) const {
    config.checkpoint_blocks = blocks ? std::to_string(*blocks) : "all";
    config.stream_blocks = streamed ? std::to_string(*streamed) : "all";
    if (blocks == 0) config.checkpoints_on_host = false;
    MemoryChoice choice{.config = std::move(config)};
    choice.plan = known_.plan(choice.config, bucket_, request_.host);
    choice.blocks = blocks.value_or(choice.plan.blocks);
    choice.streamed = streamed.value_or(choice.plan.blocks);
    choice.seconds = choice.plan.seconds();
    return choice;
  }

  // The fewest recomputed blocks with which it fits, else the number that takes the least.
  MemoryChoice with_streamed(const TrainConfig& config, std::optional<size_t> streamed) const {
    if (config_.checkpoint_blocks != "0") return way(config, given(config_.checkpoint_blocks), streamed);
    MemoryChoice none = way(config, 0, streamed);
    if (fits(none)) return none;
    const size_t blocks = none.plan.blocks;
    MemoryChoice best = way(config, blocks, streamed);
    // The last block is the first that backward comes to: to recompute it frees nothing.
    if (blocks > 1)
      if (MemoryChoice fewer = way(config, blocks - 1, streamed); fewer.plan.total() <= best.plan.total()) best = fewer;
    if (!fits(best)) return best;
    return fewest_that_fit(0, best.blocks, best, fitting(), [&](size_t n) { return way(config, n, streamed); });
  }

  // What blocks keep travels once each way, and weights come twice. The same where that frees nothing.
  MemoryChoice with_checkpoints_on_host(const MemoryChoice& choice) const {
    TrainConfig config = choice.config;
    config.checkpoints_on_host = true;
    MemoryChoice moved = with_streamed(config, choice.streamed);
    const bool may = !request_.host || request_.host->allows(moved.plan);
    return may && moved.plan.total() < choice.plan.total() ? moved : choice;
  }

  // How many blocks' weights the host may hold, as if they were alike.
  size_t most_for_the_host(const TrainConfig& config, size_t blocks) const {
    if (!request_.host) return blocks;
    const MemoryPlan all = way(config, blocks, blocks).plan;
    if (request_.host->allows(all)) return blocks;
    const size_t locked = request_.host->locked, own = std::min(locked, request_.host->devices * all.host_own);
    return blocks * (locked - own) / (all.host - all.host_own);
  }

  // As few streamed blocks as fit with all of them recomputed; or more, which leave room to recompute fewer.
  MemoryChoice streamed(const TrainConfig& config, MemoryChoice best) const {
    const size_t blocks = best.plan.blocks, streamable = most_for_the_host(config, blocks);
    MemoryChoice most = with_streamed(config, streamable);
    most.host_is_full = streamable < blocks;
    if (!fits(best)) {
      if (!fits(most)) return most;
      const auto all_again = [&](size_t n) { return way(config, blocks, n); };
      best = with_streamed(config, fewest_that_fit(0, streamable, most, fitting(), all_again).streamed);
    }
    const size_t least = best.streamed;
    for (const size_t eighths : {1, 2, 4, 6, 8}) {
      const size_t count = least + (streamable - least) * eighths / 8;
      const MemoryChoice tried = eighths == 8 ? most : with_streamed(config, count);
      if (fits(tried) && tried.seconds < best.seconds) best = tried;
    }
    return best;
  }

  const TrainConfig& config_;
  KnownPlans& known_;
  Size bucket_;
  MemoryRequest request_;
};

std::string base_in_words(const TrainConfig& config) {
  return std::string(config.quantize == Quantize::none ? name_of(config.dtype) : name_of(config.quantize));
}

std::string count_in_words(size_t count, const MemoryPlan& plan) {
  if (count == 0) return "no block";
  return count == plan.blocks ? fmt::format("all {} blocks", count)
                              : fmt::format("{} of {} blocks", count, plan.blocks);
}

// "the base in int8, 26 of 57 blocks computed twice, all 57 blocks streamed, with 8.1 GiB on the host"
std::string way_in_words(const MemoryChoice& choice, const std::optional<HostLimit>& host) {
  std::string text = fmt::format("the base in {}, {} computed twice", base_in_words(choice.config),
                                 count_in_words(choice.blocks, choice.plan));
  if (choice.config.checkpoints_on_host) text += " with their inputs on the host";
  if (choice.streamed > 0) text += fmt::format(", {} streamed", count_in_words(choice.streamed, choice.plan));
  if (choice.config.stream_text_encoder) text += ", T5 streamed";
  return text + on_host_in_words(locked_by(choice.plan, host), choice.plan.staged);
}

}  // namespace

const MemoryChoice& MemoryChoices::smallest() const {
  return *std::ranges::min_element(precisions, {}, [](const MemoryChoice& c) { return c.plan.total(); });
}

std::string MemoryChoices::in_words() const {
  if (!best) {
    const MemoryChoice& least = smallest();
    if (least.plan.total() <= request.size)
      return fmt::format("this run needs {}, with {}", request.host_in_words(locked_by(least.plan, request.host)),
                         way_in_words(least, request.host));
    std::string text =
        fmt::format("this run needs {} at least, {} more, with {}", readable_bytes(least.plan.total()),
                    readable_bytes(least.plan.total() - request.size), way_in_words(least, request.host));
    if (least.plan.encoding > least.plan.step())
      text += "; most of it while pictures and captions are encoded, before the first step";
    else if (least.plan.previews > least.plan.step())
      text += "; most of it while previews are made: --sample-prompts with smaller pictures need less";
    else if (least.host_is_full)
      text += fmt::format("; more would be streamed than the {} of --host-memory hold",
                          readable_bytes(request.host->locked));
    return text;
  }
  std::string text = fmt::format("{} with {}", readable_bytes(best->plan.total()), way_in_words(*best, request.host));
  if (unfitted > best->plan.total())
    text += fmt::format(", which saves {}", readable_bytes(unfitted - best->plan.total()));
  for (const MemoryChoice& other : precisions) {
    if (other.config.quantize == best->config.quantize) continue;
    const bool fits = request.fits(other.plan);
    text += fmt::format("; {} {} {}", base_in_words(other.config), fits ? "takes" : "would need",
                        readable_bytes(other.plan.total()));
    if (fits) text += fmt::format(" and {:.2f} times as long", other.seconds / best->seconds);
  }
  return text;
}

const MemoryPlan& KnownPlans::plan(const TrainConfig& config, Size bucket, const std::optional<HostLimit>& host) {
  std::string key = fmt::format("{}{}x{}", to_toml(config), bucket.width, bucket.height);
  if (host) key += fmt::format(", {} {} {}", host->locked, host->all, host->devices);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  const std::vector<BlockCost>& blocks = costs(config, bucket);
  if (before_) before_();
  return plans_[key] = plan_memory(config, model_, device_, bucket, &blocks, host);
}

// That follow from the dtype of activations, whatever is recomputed, streamed or quantised.
const std::vector<BlockCost>& KnownPlans::costs(const TrainConfig& config, Size bucket) {
  TrainConfig plain = config;
  static const TrainConfig defaults;
  for (const TrainOption& option : train_options())
    for (const char* key :
         {"quantize", "checkpoint_blocks", "stream_blocks", "checkpoints_on_host", "stream_text_encoder"})
      if (option.key == key) option.copy(defaults, plain);
  std::vector<BlockCost>& blocks = costs_[fmt::format("{}{}x{}", to_toml(plain), bucket.width, bucket.height)];
  if (blocks.empty()) blocks = block_costs(config, model_, device_, bucket);
  return blocks;
}

MemoryChoices choose_for_memory(const MemoryRequest& request, TrainConfig config, KnownPlans& known,
                                std::optional<Size> bucket) {
  if (known.device().is_device && config.dtype == DType::f32) config.dtype = DType::bf16;
  if (!bucket) bucket = largest_bucket(config, known.model());
  MemoryChoices choices{.request = request, .unfitted = known.plan(config, *bucket, {}).total()};
  const Ways ways(config, known, *bucket, request);
  for (const Quantize precision : precisions(config, request.keeps_precision))
    choices.precisions.push_back(ways.fitted(precision));
  std::vector<WayCost> costs;
  for (const MemoryChoice& choice : choices.precisions) costs.push_back({request.fits(choice.plan), choice.seconds});
  if (const std::optional<size_t> best = best_way(costs)) choices.best = choices.precisions[*best];
  return choices;
}

int64_t batch_that_fits(const MemoryRequest& request, TrainConfig config, KnownPlans& known, std::optional<Size> bucket,
                        int64_t most) {
  if (!bucket) bucket = largest_bucket(config, known.model());
  MemoryRequest same = request;
  const auto seconds_of = [&](int64_t batch) -> std::optional<double> {
    config.batch_size = batch;
    if (config.memory.empty()) {
      const MemoryPlan& plan = known.plan(config, *bucket, {});
      return same.fits(plan) ? std::optional(plan.seconds()) : std::nullopt;
    }
    const MemoryChoices choices = choose_for_memory(same, config, known, bucket);
    if (!choices.best) return {};
    if (batch == 1) {
      config.quantize = choices.best->config.quantize;
      config.dtype = choices.best->config.dtype;
      same.keeps_precision = true;
    }
    return choices.best->seconds;
  };
  const std::optional<double> alone = seconds_of(1);
  int64_t best = 1;
  for (int64_t batch = 2; alone && batch <= most; batch *= 2) {
    const std::optional<double> seconds = seconds_of(batch);
    if (!seconds || *seconds > 1.05 * *alone * double(batch)) break;
    best = batch;
  }
  return best;
}

std::vector<size_t> memory_sizes(const TrainConfig& config, std::string_view device, std::optional<size_t> free) {
  std::vector<size_t> sizes;
  for (const std::optional<size_t>& size : asked_memory(config)) {
    const std::optional<size_t> found = size ? size : free;
    check_usage(found.has_value(), "--memory auto: expected a device that is here, found {}", device);
    sizes.push_back(*found);
  }
  return sizes;
}

}  // namespace wick
