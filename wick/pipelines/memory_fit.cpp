#include "wick/pipelines/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "wick/pipelines/weight_flags.h"

namespace wick {
namespace {

// The way of one precision.
class Search {
 public:
  Search(const MemoryRequest& request, const PlanOfHolding& plan) : request_(request), plan_(plan) {}

  HeldPlan of(const std::optional<DType>& precision) const {
    Holding holding{.quantized = precision};
    HeldPlan held = planned(holding);
    if (fits(held) || !held.plan.device.is_device) return held;
    holding.stream_text_encoder = true;
    HeldPlan encoder = planned(holding);
    if (fits(encoder)) return encoder;
    holding.stream_text_encoder = encoder.plan.total() < held.plan.total();
    const size_t blocks = held.plan.blocks;
    const auto way = [&](size_t streamed) {
      Holding some = holding;
      some.streamed = streamed;
      return planned(some);
    };
    const HeldPlan all = way(blocks);
    if (!fits(all)) return all;
    return fewest_that_fit(
        0, blocks, all, [&](const HeldPlan& h) { return fits(h); }, way);
  }

 private:
  HeldPlan planned(const Holding& holding) const { return plan_held(holding, request_.host, plan_); }
  // On the device alone: the fewest streamed blocks that fit there take the least of the host too.
  bool fits(const HeldPlan& held) const { return held.plan.total() <= request_.size; }

  const MemoryRequest& request_;
  const PlanOfHolding& plan_;
};

std::string in_words(const HeldPlan& held, const std::optional<HostLimit>& host) {
  const auto& [quantized, streamed, encoder, staged, copies] = held.holding;
  std::string text = quantized ? "weights in " + dtype_in_words(*quantized) : "weights as they are";
  if (streamed > 0) text += fmt::format(", {} of {} blocks streamed", streamed, held.plan.blocks);
  if (encoder) text += ", T5 streamed";
  return text + on_host_in_words(locked_by(held.plan, host), held.plan.staged);
}

}  // namespace

std::optional<size_t> best_way(const std::vector<WayCost>& ways) {
  double fastest = 0;
  for (const WayCost& way : ways)
    if (way.fits) fastest = fastest == 0 ? way.seconds : std::min(fastest, way.seconds);
  for (size_t i = 0; i < ways.size(); ++i)
    if (ways[i].fits && ways[i].seconds <= 1.10 * fastest) return i;
  return {};
}

std::string MemoryRequest::host_in_words(size_t bytes) const {
  return fmt::format("{} of the host's memory, more than the {} that --host-memory allows", readable_bytes(bytes),
                     readable_bytes(host ? host->locked : 0));
}

std::vector<std::optional<DType>> precisions_for_memory() { return {std::nullopt, DType::int8, DType::nf4_double}; }

std::string InferenceChoices::in_words() const {
  if (best) return fmt::format("{} with {}", readable_bytes(best->plan.total()), wick::in_words(*best, request.host));
  const HeldPlan& least = *std::ranges::min_element(all, {}, [](const HeldPlan& h) { return h.plan.total(); });
  if (least.plan.total() <= request.size)
    return fmt::format("this needs {}, with {}", request.host_in_words(locked_by(least.plan, request.host)),
                       wick::in_words(least, request.host));
  return fmt::format("this needs {} at least, {} more, with {}", readable_bytes(least.plan.total()),
                     readable_bytes(least.plan.total() - request.size), wick::in_words(least, request.host));
}

HeldPlan plan_held(Holding holding, const std::optional<HostLimit>& host, const PlanOfHolding& plan) {
  const auto plan_of = [&](bool staged) {
    holding.staged = staged;
    return plan(holding);
  };
  const InferencePlan held = plan_within(host, plan_of);
  holding.staged = held.staged > 0;
  return {holding, held};
}

InferenceChoices choose_holding(const MemoryRequest& request, const std::vector<std::optional<DType>>& precisions,
                                const PlanOfHolding& plan) {
  InferenceChoices choices{.request = request};
  const Search search(request, plan);
  std::vector<WayCost> ways;
  for (const std::optional<DType>& precision : precisions) {
    choices.all.push_back(search.of(precision));
    ways.push_back({request.fits(choices.all.back().plan), choices.all.back().plan.seconds()});
  }
  if (const std::optional<size_t> best = best_way(ways)) choices.best = choices.all[*best];
  return choices;
}

}  // namespace wick
