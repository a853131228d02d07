// Reverse-mode automatic differentiation on a tape.
//
// A Tape is an object in scope. While one is alive, operations on tracked tensors record one closure each; without one
// nothing is recorded and nothing is saved. backward() walks the list from its end and drops each entry as it goes, so
// that saved tensors die as early as they can. Gradients are a value (Grads), not hidden state of tensors.
//
// A closure keeps alive all that it captures: capture an `Input` (an identity without data) where only the gradient's
// address is needed, a `Saved` only where values are.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "wick/backend/backend.h"

namespace wick {

// Every operation registers itself once, by name. The op tests walk this list: each needs a gradient check.
class Op {
 public:
  enum class Kind { differentiable, not_differentiable };
  explicit Op(const char* name, Kind kind = Kind::differentiable);

  const char* name() const { return name_; }
  bool differentiable() const { return kind_ == Kind::differentiable; }
  static const std::vector<const Op*>& all();

 private:
  const char* name_;
  Kind kind_;
};

// Returns the tensor into which another tensor's gradient is best written. It is called once.
using Room = std::function<Tensor()>;

// The identity, shape and place of a tensor, without its data.
class Input {
 public:
  Input(const Tensor& x);  // NOLINT: implicit
  bool tracked() const { return id != 0; }
  Tensor empty() const { return Tensor::empty(shape, dtype, *memory); }  // a new tensor for its gradient
  // The same for an operation that can write to any strides: part of a larger gradient if the tape has a Room.
  Tensor room() const;

  uint64_t id;
  Shape shape;
  DType dtype;
  Memory* memory;

 private:
  std::shared_ptr<Room> room_;
};

class Grads {
 public:
  bool wants(const Input& x) const { return x.tracked(); }
  // Adds dx to the gradient of x; does nothing if x is not tracked. dx has x's shape.
  void add(const Input& x, Tensor dx);
  // The gradient of x, or an empty Tensor where none flowed.
  Tensor operator[](const Tensor& x) const { return at(x.id()); }
  Tensor at(uint64_t id) const;
  Tensor take(uint64_t id);  // the same, and forgets it
  // Tells `watcher` of every addend, behind its adding, by the identity of the tensor whose gradient it is a part of.
  void watch(std::function<void(uint64_t id)> watcher) { watcher_ = std::move(watcher); }
  // The place where the gradients of `ids` are best written, one after the other, as [count]. It is empty where any
  // tensor will do; what is written there has still to be added.
  using LeafRoom = std::function<Tensor(const std::vector<uint64_t>& ids)>;
  void set_room(LeafRoom room) { room_ = std::move(room); }
  Tensor room(const std::vector<uint64_t>& ids) const { return room_ ? room_(ids) : Tensor(); }

 private:
  struct Entry {
    Tensor grad;
    bool owned = false;  // made here by adding, so it may be added to in place
  };
  std::unordered_map<uint64_t, Entry> entries_;
  std::function<void(uint64_t)> watcher_;
  LeafRoom room_;
};

using Backward = std::function<void(const Tensor& dy, Grads& grads)>;
// Computes an operation's output again, to the same bits, from tensors that its Backward keeps anyway.
using Remake = std::function<Tensor()>;

class Tape {
 public:
  enum class Keep { needed, all };          // `all` while a checkpointed block runs again: no Remake is used
  explicit Tape(Keep keep = Keep::needed);  // becomes the active tape of this thread
  ~Tape();                                  // restores the outer one
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;
  static Tape* active();
  // True while a block under checkpoint() runs again: its output is not read then, only its gradients are wanted.
  static bool runs_again() { return active() && active()->keep_ == Keep::all; }

  // d loss / d leaves, for a loss of one element. Leaves are the tensors made trainable().
  Grads backward(const Tensor& loss);
  // Continues into `grads` from dy, the gradient of y.
  void backward(const Tensor& y, const Tensor& dy, Grads& grads);

  // Records y's backward and, if given, its recomputation; returns y with an identity. Called by record() below.
  Tensor push(const Op& op, const Tensor& y, Backward backward, Remake remake = {});
  void set_room(const Tensor& y, Room room);  // for the gradient of y
  size_t size() const { return entries_.size(); }
  // Shows `observer` the output of every operation as it is recorded, to find the origin of a NaN.
  void observe(std::function<void(const Op& op, const Tensor& y)> observer) { observer_ = std::move(observer); }

 private:
  friend class TapePause;
  friend class Saved;
  friend class Input;
  struct Entry {
    const Op* op;
    uint64_t id;
    Backward backward;
  };
  std::vector<Entry> entries_;
  // An output that is recomputed: it lives from its first use in backward until its own operation's turn.
  struct Again {
    Remake make;
    Tensor made;
  };
  Keep keep_;
  std::unordered_map<uint64_t, std::shared_ptr<Again>> agains_;  // by identity of their output
  std::unordered_map<uint64_t, std::shared_ptr<Room>> rooms_;    // by identity of the tensors with these gradients
  std::function<void(const Op&, const Tensor&)> observer_;
  Tape* outer_;
};

// A tensor whose values a closure needs: kept itself, or as its Remake (rematerialisation) where the operation that
// made it recorded one: norms and gates, whose outputs are as large as the inputs they keep, and products.
//
// Recomputing an element of a product takes two operations per input. Up to 2048 inputs (a UNet's transformers have
// 1280) that costs a few percent of a step; in a language model of 7B, with 4096, it cost 15 percent, for 1.8 MiB a
// token.
inline constexpr int64_t kWidestMadeAgain = 2048;
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Tensor& x);
  explicit operator bool() const { return kept_ || again_; }
  bool is_made_again() const { return bool(again_); }
  Tensor operator()() const;
  Tensor take();  // the last use: a tensor that is then sole may be overwritten

 private:
  Tensor kept_;
  std::shared_ptr<Tape::Again> again_;
};

// Recording stops while one is alive.
class TapePause {
 public:
  TapePause();
  ~TapePause();
  TapePause(const TapePause&) = delete;
  TapePause& operator=(const TapePause&) = delete;

 private:
  Tape* paused_;
};

// Stands for an output that is not computed because it is never read: one NaN, repeated by strides of 0.
Tensor unread(const Shape& shape, const Tensor& like);

// Ends every operation: returns y as it is, or recorded if a tape is alive and some input is tracked.
template <class F, class R = Remake>
Tensor record(const Op& op, const Tensor& y, std::initializer_list<Input> inputs, F&& backward, R&& remake = {}) {
  Tape* tape = Tape::active();
  const auto is_tracked = [](const Input& x) { return x.tracked(); };
  if (!tape || std::none_of(inputs.begin(), inputs.end(), is_tracked)) return y;
  return tape->push(op, y, std::forward<F>(backward), std::forward<R>(remake));
}

}  // namespace wick
