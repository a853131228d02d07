#include "wick/autograd/tape.h"

#include <cassert>
#include <limits>

namespace wick {

namespace {
// Host tensors find their backend from the first line of main on. This line stands here, not in cpu.cpp, because a
// linker takes from a static library only objects that are referred to, and every op refers to the tape.
[[maybe_unused]] const bool host_has_backend = (host_memory().create_backend_by(cpu_backend), true);

thread_local Tape* active_tape = nullptr;

std::vector<const Op*>& op_list() {
  static auto* list = new std::vector<const Op*>;
  return *list;
}
}  // namespace

Op::Op(const char* name, Kind kind) : name_(name), kind_(kind) { op_list().push_back(this); }
const std::vector<const Op*>& Op::all() { return op_list(); }

Input::Input(const Tensor& x) : id(x.id()), shape(x.shape()), dtype(x.dtype()), memory(&x.memory()) {
  const Tape* tape = Tape::active();
  if (!tape) return;
  if (const auto found = tape->rooms_.find(id); found != tape->rooms_.end()) room_ = found->second;
}

Tensor Input::room() const {
  const Room once = room_ ? std::exchange(*room_, {}) : Room();
  return once ? once() : empty();
}

void Grads::add(const Input& x, Tensor dx) {
  if (!x.tracked() || !dx) return;
  assert(dx.shape() == x.shape);
  Entry& entry = entries_[x.id];
  if (!entry.grad) {
    entry.grad = std::move(dx);
  } else if (entry.owned) {
    entry.grad.backend().accumulate(entry.grad, dx, 1.0f);
  } else {  // the first gradient may be shared with another tensor: add into a new one
    Tensor total = Tensor::empty(x.shape, dx.dtype(), dx.memory());
    total.backend().binary(Binary::add, total, entry.grad, dx);
    entry = {std::move(total), true};
  }
  if (watcher_) watcher_(x.id);
}

Tensor Grads::at(uint64_t id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? Tensor() : found->second.grad;
}

Tensor Grads::take(uint64_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return {};
  Tensor grad = std::move(found->second.grad);
  entries_.erase(found);
  return grad;
}

Tape::Tape(Keep keep) : keep_(keep), outer_(active_tape) { active_tape = this; }
Tape::~Tape() { active_tape = outer_; }
Tape* Tape::active() { return active_tape; }

Tensor Tape::push(const Op& op, const Tensor& y, Backward backward, Remake remake) {
  if (observer_) observer_(op, y);
  Tensor tracked = y.trainable();
  if (remake && keep_ == Keep::needed) agains_[tracked.id()] = std::make_shared<Again>(Again{std::move(remake), {}});
  entries_.push_back({&op, tracked.id(), std::move(backward)});
  return tracked;
}

void Tape::set_room(const Tensor& y, Room room) { rooms_[y.id()] = std::make_shared<Room>(std::move(room)); }

Grads Tape::backward(const Tensor& loss) {
  check(loss.numel() == 1, "backward: the loss has shape {}, not one element", loss.shape());
  Tensor one = Tensor::empty(loss.shape(), loss.dtype(), loss.memory());
  one.backend().fill(one, 1.0f);
  Grads grads;
  backward(loss, one, grads);
  return grads;
}

void Tape::backward(const Tensor& y, const Tensor& dy, Grads& grads) {
  const TapePause pause;  // backward kernels are not recorded
  grads.add(y, dy);
  while (!entries_.empty()) {
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    if (const auto again = agains_.find(entry.id); again != agains_.end()) {
      again->second->made = {};
      agains_.erase(again);
    }
    if (Tensor grad = grads.take(entry.id)) entry.backward(grad, grads);
  }
}

Saved::Saved(const Tensor& x) {
  const Tape* tape = Tape::active();
  if (tape)
    if (const auto found = tape->agains_.find(x.id()); found != tape->agains_.end()) again_ = found->second;
  if (!again_) kept_ = x.detached();
}

Tensor Saved::operator()() const {
  if (!again_) return kept_;
  if (!again_->made) again_->made = again_->make();
  return again_->made;
}

Tensor Saved::take() { return again_ ? (*this)() : std::exchange(kept_, {}); }

TapePause::TapePause() : paused_(active_tape) { active_tape = nullptr; }
TapePause::~TapePause() { active_tape = paused_; }

Tensor unread(const Shape& shape, const Tensor& like) {
  const Tensor nan = Tensor::empty({1}, like.dtype(), like.memory());
  nan.backend().fill(nan, std::numeric_limits<float>::quiet_NaN());
  Shape strides = shape;
  for (int i = 0; i < shape.rank(); ++i) strides[i] = 0;
  return nan.window(shape, strides);
}

}  // namespace wick
