// Gradient checkpointing (Chen et al., 2016): a block keeps only its inputs and runs again in backward.
//
// `f` is copied into the tape; wrap a model block in std::cref. Its parameters need not be listed: the second run
// records on an inner tape, which adds to the same Grads. Random numbers inside must be counter-based.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "wick/autograd/host_checkpoints.h"
#include "wick/autograd/tape.h"

namespace wick {

inline const Op kCheckpoint("checkpoint");

// How a block's inputs are kept: a functor of each gives it back.
struct KeepThere {
  template <class T>
  auto operator()(const T& x) const {
    return [x] { return x; };
  }
};

// Tensors on the host; whatever else there is stays.
struct KeepOnHost {
  std::shared_ptr<HostCheckpoints> host;

  template <class T>
  auto operator()(const T& x) const {
    if constexpr (std::is_same_v<T, Tensor>)
      return [host = host, number = x ? std::optional(host->keep(x)) : std::nullopt] {
        return number ? host->take(*number) : Tensor();
      };
    else
      return [x] { return x; };
  }
};

// While one is alive, a device decodes each weight once: for its product and for that of its gradient.
class DecodedOnce {
 public:
  explicit DecodedOnce(Backend& backend) : backend_(backend) { backend_.keep_decoded(true); }
  ~DecodedOnce() { backend_.keep_decoded(false); }
  DecodedOnce(const DecodedOnce&) = delete;
  DecodedOnce& operator=(const DecodedOnce&) = delete;

 private:
  Backend& backend_;
};

// f of what was kept.
template <class F, class Kept>
auto run_again(const F& f, const Kept& kept) {
  return std::apply([&](const auto&... x) { return f(x()...); }, kept);
}

template <class Keep, class F, class... Inputs>
requires std::is_same_v<std::invoke_result_t<F, const Inputs&...>, Tensor> Tensor checkpoint_by(const Keep& keep,
                                                                                                const F& f,
                                                                                                const Inputs&... x) {
  Tape* tape = Tape::active();
  if (!tape) return f(x...);
  const std::tuple kept{keep(x)...};
  Tensor y = [&] {
    const TapePause pause;
    return f(x...);
  }();
  // Tracked even if no input is: trainable parameters may hide inside f.
  return tape->push(kCheckpoint, y, [=](const Tensor& dy, Grads& grads) {
    Tape inner(Tape::Keep::all);  // no recomputation within a recomputation
    const DecodedOnce once(dy.backend());
    const Tensor again = run_again(f, kept);
    inner.backward(again, dy, grads);
  });
}

// The same for a block of several outputs.
template <class Keep, class F, class... Inputs>
requires(!std::is_same_v<std::invoke_result_t<F, const Inputs&...>, Tensor>) auto checkpoint_by(const Keep& keep,
                                                                                                const F& f,
                                                                                                const Inputs&... x) {
  Tape* tape = Tape::active();
  if (!tape) return f(x...);
  const std::tuple kept{keep(x)...};
  auto ys = [&] {
    const TapePause pause;
    return f(x...);
  }();
  const auto dys = std::make_shared<decltype(ys)>();
  // The block's turn comes once the gradients that there are lie beside it.
  const Tensor none = Tensor::empty({0}, ys[0].dtype(), ys[0].memory());
  const Tensor block = tape->push(kCheckpoint, none, [=](const Tensor&, Grads& grads) {
    Tape inner(Tape::Keep::all);
    const DecodedOnce once(none.backend());
    const auto again = run_again(f, kept);
    size_t last = 0;
    for (size_t i = 0; i < again.size(); ++i)
      if ((*dys)[i]) last = i;
    for (size_t i = 0; i < last; ++i) grads.add(again[i], std::exchange((*dys)[i], {}));
    inner.backward(again[last], std::exchange((*dys)[last], {}), grads);
  });
  for (size_t i = 0; i < ys.size(); ++i)
    ys[i] = tape->push(kCheckpoint, ys[i], [=, block = Input(block)](const Tensor& dy, Grads& grads) {
      (*dys)[i] = dy;
      if (!grads.at(block.id)) grads.add(block, none);
    });
  return ys;
}

template <class F, class... Inputs>
auto checkpoint(const F& f, const Inputs&... x) {
  return checkpoint_by(KeepThere(), f, x...);
}

}  // namespace wick
