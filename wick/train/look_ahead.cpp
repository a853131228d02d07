#include "wick/train/look_ahead.h"

#include <utility>

#include "wick/ops/ops.h"

namespace wick {
namespace {

constexpr int64_t kPictures = 256;  // with FLUX half a GiB on the host, and a third of a second for its weights' way

}  // namespace

void LookAhead::look(const TrainRng& now) {
  const TapePause frozen;
  TrainRng rng = now;
  BatchSampler order = data_.batches();
  std::vector<Tensor> times;
  std::map<std::string, std::vector<Tensor>> parts;
  begins_ = {0};
  places_.clear();
  while (begins_.back() < kPictures) {
    places_.push_back(order.place());
    const auto [latents, number, conditioning] = data_.peek(order, rng, names_);
    rng.each_sample(number, latents[0], [&, &latents = latents](int64_t count) {
      Shape some = latents;
      some[0] = count;
      times.push_back(model_.process().draw_times(some, rng.timestep, times_));
    });
    for (const auto& [name, value] : conditioning) parts[name].push_back(value);
    begins_.push_back(begins_.back() + latents[0]);
  }
  NamedTensors joined;
  for (const auto& [name, values] : parts) joined.add(name, cat(values, 0));
  const Tensor all = cat(times, 0), blank = zeros({all.dim(0), 1, 1, 1}, DType::f32, model_.memory());
  rows_ = model_.ahead(model_.process().noised(blank, blank, all).timestep, joined);
  used_ = 0;
}

NamedTensors LookAhead::next(const TrainRng& rng) {
  if (names_.empty()) return {};
  if (used_ >= places_.size() || places_[used_] != data_.batches().place()) look(rng);
  NamedTensors of_batch;
  for (const auto& [name, rows] : rows_) of_batch.add(name, slice(rows, 0, begins_[used_], begins_[used_ + 1]));
  ++used_;
  return of_batch;
}

}  // namespace wick
