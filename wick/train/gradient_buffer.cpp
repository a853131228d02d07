#include "wick/train/gradient_buffer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

// The size of a part: large enough that a sum takes longer than its launch, and small enough that most of a LoRA's
// gradients are summed while backward still runs. The last parts shrink, since nothing runs beside them: half of what
// is left.
constexpr int64_t kMostElements = int64_t{4} << 20, kFewestElements = int64_t{1} << 17;
int64_t part_size(int64_t left) { return std::clamp(left / 2, kFewestElements, kMostElements); }

}  // namespace

GradientBuffer::GradientBuffer(const std::vector<Parameter>& parameters, RankSums* ranks)
    : parameters_(parameters), ranks_(ranks) {
  int64_t count = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    numbers_[parameters_[i].value.id()] = i;
    count += parameters_[i].value.numel();
  }
  all_ = zeros({count + 1}, DType::f32, parameters_.front().value.memory());
  loss_ = all_.window({1}, {1}, count);
}

// Until the first gradients have come there is no order.
void GradientBuffer::arrange(const std::vector<int64_t>& last_added) {
  const size_t count = parameters_.size();
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::ranges::stable_sort(order_, {}, [&](size_t i) { return last_added[i]; });
  offsets_.resize(count);
  part_of_.resize(count);
  int64_t offset = 0, part_begin = 0;
  for (size_t at = 0; at < count; ++at) {
    const size_t i = order_[at];
    offsets_[i] = offset;
    part_of_[i] = parts_.size();
    offset += parameters_[i].value.numel();
    if (offset - part_begin < part_size(all_.numel() - part_begin) && at + 1 < count) continue;
    parts_.push_back(at + 1);
    part_begin = offset;
  }
}

void GradientBuffer::clear() { all_.backend().fill(all_, 0); }

void GradientBuffer::begin(Grads& grads, const std::string& kind, Place place) {
  kind_ = kind;
  place_ = place;
  seen_.assign(parameters_.size(), 0);
  last_added_.assign(parameters_.size(), std::numeric_limits<int64_t>::max());
  next_part_ = 0;
  clock_ = 0;
  const auto known = known_.find(kind);
  expected_ = ranks_ && place != Place::before_others && known != known_.end() ? &known->second : nullptr;
  missing_.assign(parts_.size(), 0);
  for (size_t i = 0; expected_ && i < parameters_.size(); ++i) missing_[part_of_[i]] += (*expected_)[i] > 0 ? 1 : 0;
  if (!ranks_) return;
  grads.watch([this, &grads](uint64_t id) { added(grads, id); });
  if (expected_ && place == Place::alone)
    grads.set_room([this](const std::vector<uint64_t>& ids) { return room_of(ids); });
}

// Their own windows, if those lie one after the other and nothing else will be added to them. Kernels write 16 bytes at
// once.
Tensor GradientBuffer::room_of(const std::vector<uint64_t>& ids) const {
  constexpr int64_t kAligned = 16 / sizeof(float);
  int64_t begin = -1, end = -1;
  for (const uint64_t id : ids) {
    const auto found = numbers_.find(id);
    if (found == numbers_.end()) return {};
    const size_t i = found->second;
    if ((*expected_)[i] != 1 || (begin >= 0 && offsets_[i] != end)) return {};
    if (begin < 0) begin = offsets_[i];
    end = offsets_[i] + parameters_[i].value.numel();
  }
  return begin < 0 || begin % kAligned != 0 ? Tensor() : all_.window({end - begin}, {1}, begin);
}

void GradientBuffer::added(Grads& grads, uint64_t id) {
  const auto found = numbers_.find(id);
  if (found == numbers_.end()) return;
  const size_t i = found->second;
  last_added_[i] = clock_++;
  const int64_t seen = ++seen_[i];
  if (!expected_) return;
  check(seen <= (*expected_)[i], "{}: its gradient changed after it was summed over the ranks", parameters_[i].name);
  if (seen < (*expected_)[i]) return;
  --missing_[part_of_[i]];
  while (next_part_ < parts_.size() && missing_[next_part_] == 0) sum_part(grads);
}

void GradientBuffer::end(Grads& grads) {
  grads.watch({});
  grads.set_room({});
  if (order_.empty()) {
    arrange(last_added_);
    if (ranks_) ranks_->check_same("order of gradients", fmt::format("{}", fmt::join(order_, " ")));
  }
  if (ranks_ && !expected_) known_[kind_] = seen_;
  if (!ranks_ || place_ == Place::before_others) return write(grads, 0, parameters_.size());
  while (next_part_ < parts_.size()) sum_part(grads);
  ranks_->join();
}

// The gradients of order_[begin, end) into the buffer, where they are no longer needed elsewhere.
void GradientBuffer::write(Grads& grads, size_t begin, size_t end) {
  std::vector<Tensor> kept;
  std::vector<Copied> copies;
  for (size_t at = begin; at < end; ++at) {
    const size_t i = order_[at];
    kept.push_back(grads.take(parameters_[i].value.id()));
    const Tensor place = window(i);
    if (kept.back() && kept.back().view().data != place.view().data)
      copies.push_back({place, kept.back()});
    else if (!kept.back() && place_ == Place::alone)
      all_.backend().fill(place, 0);
  }
  all_.backend().copy_many(copies, /*add=*/place_ != Place::alone);
}

void GradientBuffer::sum_part(Grads& grads) {
  const size_t begin = next_part_ == 0 ? 0 : parts_[next_part_ - 1], end = parts_[next_part_];
  write(grads, begin, end);
  const int64_t from = offsets_[order_[begin]],
                to = ++next_part_ == parts_.size() ? all_.numel() : offsets_[order_[end]];
  ranks_->add(all_.window({to - from}, {1}, from));
}

Tensor GradientBuffer::window(size_t parameter) const {
  const Shape& shape = parameters_[parameter].value.shape();
  return all_.window(shape, contiguous_strides(shape), offsets_[parameter]);
}

Grads GradientBuffer::sums() const {
  Grads grads;
  for (size_t i = 0; i < parameters_.size(); ++i) grads.add(parameters_[i].value, window(i));
  return grads;
}

}  // namespace wick
