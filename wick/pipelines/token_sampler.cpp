#include "wick/pipelines/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "wick/backend/cpu/parallel.h"
#include "wick/core/error.h"

namespace wick {
namespace {

// The possible tokens, by weights that are 1 for the likeliest.
struct Candidates {
  const std::vector<float>& weights;  // of all tokens
  std::vector<int64_t> ids;
  size_t sorted = 0;  // this many stand in front, likeliest first

  explicit Candidates(const std::vector<float>& all) : weights(all), ids(all.size()) {
    std::iota(ids.begin(), ids.end(), int64_t{0});
  }

  double weight(size_t i) const { return weights[size_t(ids[i])]; }
  double total() const {
    double sum = 0;
    for (size_t i = 0; i < ids.size(); ++i) sum += weight(i);
    return sum;
  }

  void sort_first(size_t count) {
    if (count <= sorted) return;
    sorted = std::min(count, ids.size());
    std::partial_sort(ids.begin(), ids.begin() + long(sorted), ids.end(), [this](int64_t a, int64_t b) {
      const float x = weights[size_t(a)], y = weights[size_t(b)];
      return x != y ? x > y : a < b;
    });
  }

  void keep_most_likely(size_t count) {
    if (count >= ids.size()) return;
    sort_first(count);
    ids.resize(count);
  }

  // Sorts no more than needed: mostly few tokens have most of the probability.
  void keep_share(double share) {
    const double wanted = share * total();
    double sum = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i == sorted) sort_first(std::max<size_t>(64, 8 * sorted));
      sum += weight(i);
      if (sum < wanted) continue;
      ids.resize(i + 1);
      return;
    }
  }

  void keep_at_least(double lowest) {
    std::erase_if(ids, [&](int64_t id) { return weights[size_t(id)] < lowest; });
  }

  int64_t draw(double uniform) const {
    double left = uniform * total();
    for (size_t i = 0; i < ids.size(); ++i) {
      left -= weight(i);
      if (left < 0) return ids[i];
    }
    // Rounding left a remainder: the last possible token gets it.
    return *std::find_if(ids.rbegin(), ids.rend(), [this](int64_t id) { return weights[size_t(id)] > 0; });
  }
};

}  // namespace

void Sampling::check() const {
  const auto in = [](const char* name, double value, double min, double max) {
    wick::check(value >= min && value <= max, "{}: expected a number from {} to {}, found {}", name, min, max, value);
  };
  in("temperature", temperature, 0, 100);
  wick::check(top_p > 0 && top_p <= 1, "top-p: expected a number above 0 and up to 1, found {}", top_p);
  in("min-p", min_p, 0, 1);
  in("repetition penalty", repetition_penalty, 0.01, 100);
  wick::check(top_k >= 0, "top-k: expected 0 or more, found {}", top_k);
}

void TokenSampler::check_highest(float logit) {
  wick::check(!std::isnan(logit), "the model's logits are not numbers");
  wick::check(std::isfinite(logit), "the model's logits are not finite");
}

int64_t TokenSampler::operator()(std::vector<float> logits, std::span<const int64_t> text) {
  const float penalty = sampling_.repetition_penalty;
  if (penalty != 1)
    for (const int64_t id : std::unordered_set<int64_t>(text.begin(), text.end()))
      logits[size_t(id)] *= logits[size_t(id)] > 0 ? 1 / penalty : penalty;

  for (const float logit : logits)
    if (std::isnan(logit)) check_highest(logit);
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  const float highest = *likeliest;
  check_highest(highest);
  if (sampling_.temperature == 0) return likeliest - logits.begin();

  // A device is idle during this.
  const float temperature = sampling_.temperature;
  constexpr int64_t kWork = 2;  // cost of an exponential, in copies of an element
  parallel_for(int64_t(logits.size()), kWork * int64_t(logits.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) logits[size_t(i)] = std::exp((logits[size_t(i)] - highest) / temperature);
  });
  Candidates candidates(logits);
  if (sampling_.top_k > 0) candidates.keep_most_likely(size_t(sampling_.top_k));
  if (sampling_.top_p < 1) candidates.keep_share(sampling_.top_p);
  if (sampling_.min_p > 0) candidates.keep_at_least(sampling_.min_p);
  return candidates.draw(rng_.uniform());
}

}  // namespace wick
