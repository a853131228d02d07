#include "wick/train/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "wick/pipelines/memory_advice.h"
#include "wick/pipelines/plan.h"
#include "wick/train/memory_choice.h"
#include "wick/train/picture_settings.h"
#include "wick/train/step.h"
#include "wick/train/text_task.h"

namespace wick {
namespace {

constexpr int64_t kMicroBatches = 2;  // more than one takes room for the sum of gradients; more than two take no more

// As many batches as tell what one rank takes. What they sum over ranks takes nothing of its own.
StepOrder order_to_count(const TrainConfig& config) {
  const int64_t own = std::min(config.accumulate, kMicroBatches);
  return {.batches = own * std::min(config.ranks, kMicroBatches), .count = own};
}

struct Change {
  std::string flag;
  std::function<bool(TrainConfig&)> apply;  // false where there is nothing to change
};

template <class T>
bool assign(T& setting, T value) {
  if (setting == value) return false;
  setting = value;
  return true;
}

const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      {"--gradient-checkpointing", [](TrainConfig& c) { return assign(c.gradient_checkpointing, true); }},
      {"--bf16", [](TrainConfig& c) { return c.dtype == DType::f32 && assign(c.dtype, DType::bf16); }},
      {"--batch-size 1", [](TrainConfig& c) { return assign(c.batch_size, int64_t{1}); }}};
  return all;
}

// The blocks that are cheapest to run again for a byte that they free; of equal ones the first, which backward comes to
// when others have gone.
BlockSchedule block_schedule(const TrainConfig& config, const std::vector<BlockCost>& costs) {
  const size_t count = parse_blocks("--checkpoint-blocks", config.checkpoint_blocks);
  if (config.gradient_checkpointing || count == BlockSchedule::kAll) return BlockSchedule::recomputing_all();
  if (count == 0) return {};
  check(count <= costs.size(), "--checkpoint-blocks: expected at most {}, or all, the blocks of {}, found {}",
        costs.size(), config.model, count);
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return costs[i].flops / std::max(costs[i].bytes, 1.0); });
  return BlockSchedule::recomputing({order.begin(), order.begin() + ptrdiff_t(count)});
}

size_t streamed_blocks(const TrainConfig& config, size_t blocks) {
  const size_t count = parse_blocks("--stream-blocks", config.stream_blocks);
  if (count == BlockSchedule::kAll) return blocks;
  check(count <= blocks, "--stream-blocks: expected at most {}, or all, the blocks of {}, found {}", blocks,
        config.model, count);
  return count;
}

MemoryPlan counted_step(const TrainConfig& config, const Checkpoint& model, const DeviceKind& device, Size bucket,
                        const std::vector<BlockCost>& costs, bool staged) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  MemoryPlan plan{.bucket = bucket, .device = device};
  plan.blocks = costs.size();
  const auto blocks = [&] {
    const BlockSchedule some =
        block_schedule(config, costs).with_streamed(streamed_blocks(config, costs.size()), staged);
    return config.checkpoints_on_host ? some.with_checkpoints_on_host() : some;
  };
  plan.block_schedule = blocks();
  const std::unique_ptr<Task> task = outline_task(config, model, backend, plan.bucket, blocks());
  plan.encoding = memory.peak();
  plan.what = task->describe();
  plan.about_weights = task->about_weights();
  for (const Parameter& p : task->parameters()) plan.trained += p.value.numel();

  Shard shard = shard_of(config, 0);
  shard.rank = largest_owner(task->parameters(), shard.count);
  Optimizer optimizer(task->parameters(), OptimizerOptions::of(config), shard);
  for (const Optimizer::State& s : optimizer.states()) {
    const auto bytes = size_t(bytes_of(s.dtype, s.shape));
    plan.state += bytes;
    if (s.owner != 0) plan.saving += bytes;
  }
  TrainStep step(*task, optimizer, order_to_count(config), /*graph=*/false);
  memory.reset_peak();
  TrainRng rng(0);
  const StepCost before = backend.cost();
  step(rng, 0);
  plan.cost = backend.cost() - before;

  plan.weights = memory.held(Purpose::weights);
  plan.adapter = memory.held(Purpose::adapter);
  plan.optimizer = memory.held(Purpose::optimizer);
  plan.activations = memory.peak() - plan.weights - plan.adapter - plan.optimizer;
  if (!config.sample_prompts.empty()) {
    memory.reset_peak();
    task->outline_previews();
    plan.previews = memory.peak();
  }
  plan.taken = memory.most_taken();
  if (config.ranks > 1) plan.collectives = config.gpus.empty() ? device.nccl : device.sums_of_threads;
  if (config.ranks > 1 && !config.gpus.empty() && plan.are_sums_light(int(config.ranks)))
    plan.host_sums = device.sums_of_threads;
  if (device.is_device) {
    plan.host = memory.host_side().peak();
    plan.host_own = memory.host_side().most_beside_weights();
    plan.staged = memory.staging_side().peak();
  }
  return plan;
}

}  // namespace

Size largest_bucket(const TrainConfig& config, const Checkpoint& model) {
  if (kind_of(model) == ModelKind::text)
    return {.width = sequence_length(config, LlamaConfig::read(model)), .height = 1};
  std::vector<Size> sizes;
  for (const BucketOptions& options : bucket_options(config, open_diffusion(model)->latents()))
    std::ranges::copy(bucket_sizes(options), std::back_inserter(sizes));
  const auto area_then_square = [](Size s) { return std::pair(s.width * s.height, std::min(s.width, s.height)); };
  return *std::max_element(sizes.begin(), sizes.end(),
                           [&](Size a, Size b) { return area_then_square(a) < area_then_square(b); });
}

// All others' terms of a device's share come to it, and all others' sums.
bool MemoryPlan::are_sums_light(int devices) const {
  const double bytes = 2 * double(trained) * sizeof(float) * (devices - 1) / devices;
  return cost.fetched == 0 && bytes / device.rates.fetched <= cost.seconds / 20;
}

std::vector<BlockCost> block_costs(const TrainConfig& config, const Checkpoint& model, const DeviceKind& device,
                                   Size bucket) {
  CountingBackend backend(device);
  std::vector<BlockCost> costs;
  const auto spent = [&] { return BlockCost{backend.flops(), double(backend.memory().in_use())}; };
  const std::unique_ptr<Task> task = outline_task(config, model, backend, bucket, BlockSchedule::metered(spent, costs));
  TrainRng rng(0);
  const NamedTensors batch = task->next_batch(rng);
  costs.clear();  // of text encoders that have run
  const Tape tape;
  task->loss(batch);
  return costs;
}

MemoryPlan plan_memory(const TrainConfig& config, const Checkpoint& model, const DeviceKind& device,
                       std::optional<Size> bucket, const std::vector<BlockCost>* known,
                       const std::optional<HostLimit>& host) {
  if (!bucket) bucket = largest_bucket(config, model);
  const std::vector<BlockCost> costs = known ? *known : block_costs(config, model, device, *bucket);
  return plan_within(host, [&](bool staged) { return counted_step(config, model, device, *bucket, costs, staged); });
}

std::vector<Alternative> alternatives(const TrainConfig& config, const Checkpoint& model, const MemoryPlan& plan) {
  std::vector<Alternative> found;
  TrainConfig all = config;
  std::vector<std::string> flags;
  for (const Change& change : changes()) {
    TrainConfig changed = config;
    if (!change.apply(changed)) continue;
    const size_t total = plan_memory(changed, model, plan.device, plan.bucket).total();
    if (total + plan.peak() / 100 >= plan.total()) continue;  // not worth a line
    found.push_back({change.flag, total});
    change.apply(all);
    flags.push_back(change.flag);
  }
  std::sort(found.begin(), found.end(), [](const Alternative& a, const Alternative& b) { return a.total < b.total; });
  if (found.size() > 1)
    found.push_back(
        {fmt::format("{}", fmt::join(flags, " ")), plan_memory(all, model, plan.device, plan.bucket).total()});
  return found;
}

namespace {

// The largest pictures, or the longest rows, with which the run takes no more than `room`.
std::optional<Fitting> smaller_examples(const TrainConfig& config, const Checkpoint& model, const DeviceKind& device,
                                        size_t room) {
  constexpr int64_t kUnit = 64;
  const bool is_text = kind_of(model) == ModelKind::text;
  const int64_t native = is_text ? 0 : open_diffusion(model)->latents().native;
  std::vector<Resolution> asked = config.resolution;
  std::ranges::replace(asked, Resolution(0), Resolution(native));
  const int64_t longest =
      is_text ? config.sequence_length : std::ranges::max(asked, {}, &Resolution::shorter).shorter();
  const auto total = [&](int64_t units) {
    TrainConfig changed = config;
    changed.sequence_length = units * kUnit;
    if (!is_text) {
      changed.sequence_length = config.sequence_length;
      changed.resolution = {units * kUnit};
    }
    return plan_memory(changed, model, device).total();
  };
  const int64_t units = most_that_fits(std::max<int64_t>(1, native / 4 / kUnit), (longest - 1) / kUnit,
                                       [&](int64_t n) { return total(n) <= room; });
  if (units == 0) return {};
  return Fitting{fmt::format("{} {}", is_text ? "--sequence-length" : "--resolution", units * kUnit), total(units)};
}

std::optional<Fitting> chosen_for_memory(const TrainConfig& config, const Checkpoint& model, const MemoryPlan& plan,
                                         size_t room) {
  if (!config.memory.empty()) return {};
  KnownPlans known(model, plan.device);
  const MemoryChoices choices =
      choose_for_memory({.size = room, .host = host_limit(config.host_memory)}, config, known, plan.bucket);
  return choices.best ? std::optional(Fitting{"--memory auto", choices.best->plan.total()}) : std::nullopt;
}

}  // namespace

std::string savings(const TrainConfig& config, const Checkpoint& model, const MemoryPlan& plan, size_t missing) {
  std::vector<Alternative> found = alternatives(config, model, plan);
  const auto saved = [&](const Alternative& a) { return plan.total() - std::min(plan.total(), a.total); };
  const bool one_is_enough = !found.empty() && saved(found.front()) >= missing;
  if (found.size() > 1 && one_is_enough) found.pop_back();  // all together
  std::erase_if(found, [&](const Alternative& a) { return !is_material(saved(a), missing); });
  std::ranges::stable_sort(found, std::ranges::greater(), saved);
  std::string text;
  for (const Alternative& a : found)
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", a.flags, text.empty() ? "would save " : "",
                        readable_bytes(saved(a)));
  if (!found.empty() && saved(found.front()) >= missing) return text;
  // Weights may be held in another way, and pictures or texts be smaller.
  const size_t room = plan.total() - std::min(plan.total(), missing);
  TrainConfig all = config;
  std::string flags;
  for (const Change& change : changes())
    if (change.apply(all)) flags += change.flag + " ";
  const auto smaller = [&](const TrainConfig& changed, const std::string& before) {
    std::optional<Fitting> fitting = smaller_examples(changed, model, plan.device, room);
    if (fitting) fitting->flags = before + fitting->flags;
    return fitting;
  };
  return (text.empty() ? "" : text + "; ") +
         memory_advice(
             {[&] { return chosen_for_memory(config, model, plan, room); }, [&] { return smaller(config, ""); }},
             {[&] { return smaller(all, flags); }});
}

void check_host(const MemoryPlan& plan, const std::optional<HostLimit>& host) {
  check_locked(locked_by(plan, host), host);
  if (!host || plan.saving == 0) return;
  const size_t beside = locked_by(plan, host) + plan.staged;
  check(plan.saving + beside <= host->all,
        "to save the optimizer states of all devices, rank 0 would take {} of the host's memory, where {} may be "
        "taken; --optimizer adamw8bit has smaller states, --host-memory allows more",
        readable_bytes(plan.saving + beside), readable_bytes(host->all));
}

void check_fits(const TrainConfig& config, const Checkpoint& model, const MemoryPlan& plan, std::string_view device,
                size_t available) {
  if (plan.total() <= available) return;
  fail("this run would need {} of memory on {}, where {} are free; {}", readable_bytes(plan.total()), device,
       readable_bytes(available), savings(config, model, plan, plan.total() - available));
}

}  // namespace wick
