#include "wick/autograd/host_checkpoints.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace wick {
namespace {

// Blocks whose inputs are on their way while one runs in backward: weights may travel before them, for longer than one
// block takes.
constexpr size_t kAhead = 2;

// To eighths of powers of two, so that pictures of like sizes share rooms.
size_t rounded_up(size_t bytes) {
  const size_t step = std::max<size_t>(std::bit_floor(bytes) / 8, 1);
  return (bytes + step - 1) / step * step;
}

}  // namespace

HostCheckpoints::~HostCheckpoints() {
  if (device_) device_->remove_mover(*this);
}

void HostCheckpoints::begin_pass() {
  rest();
  count_ = block_ = 0;
}

void HostCheckpoints::begin_block() {
  for (size_t i = count_; i-- > 0 && kept_[i].block + 1 >= block_;) {
    if (kept_[i].block == block_) {
      send(kept_[i]);
    } else if (kept_[i].leaving) {
      settle(kept_[i]);
      kept_[i].device = {};
    }
  }
  ++block_;
}

size_t HostCheckpoints::keep(const Tensor& x) {
  if (!device_) (device_ = &x.memory())->add_mover(*this);
  if (count_ == kept_.size()) kept_.emplace_back();
  Kept& kept = kept_[count_];
  kept.block = block_;
  kept.device = x;
  kept.id = x.id();
  kept.shape = x.shape();
  kept.dtype = x.dtype();
  return count_++;
}

Tensor HostCheckpoints::take(size_t number) {
  Kept& kept = kept_[number];
  if (!kept.device) fetch(kept);
  settle(kept);
  const Tensor x = std::exchange(kept.device, {}).identified(kept.id);
  for (size_t i = number; i-- > 0 && kept_[i].block + kAhead >= kept.block;)
    if (kept_[i].block < kept.block && !kept_[i].device) fetch(kept_[i]);
  return x;
}

void HostCheckpoints::rest() {
  for (size_t i = 0; i < count_; ++i) {
    settle(kept_[i]);
    kept_[i].device = {};
  }
}

void HostCheckpoints::send(Kept& kept) {
  const Tensor& x = kept.device;
  if (!x.is_sole() || !x.contiguous()) return;
  const auto bytes = size_t(bytes_of(kept.dtype, kept.shape));
  if (!kept.room || size_t(kept.room.numel()) < bytes) {
    if (kept.room) outgrown_.push_back(kept.room);
    kept.room = Tensor::empty({int64_t(rounded_up(bytes))}, DType::u8, device_->host_side());
  }
  if (!kept.out) kept.out = device_->make_transfer(Direction::to_host);
  kept.out->begin(kept.room.view().data, x.view().data, bytes);
  kept.leaving = true;
}

void HostCheckpoints::fetch(Kept& kept) {
  if (!kept.in) kept.in = device_->make_transfer(Direction::to_device);
  kept.device = Tensor::empty(kept.shape, kept.dtype, *device_);
  kept.in->begin(kept.device.view().data, kept.room.view().data, size_t(bytes_of(kept.dtype, kept.shape)));
  kept.arriving = true;
}

void HostCheckpoints::settle(Kept& kept) {
  if (kept.leaving) kept.out->await();
  if (kept.arriving) kept.in->await();
  kept.leaving = kept.arriving = false;
}

}  // namespace wick
