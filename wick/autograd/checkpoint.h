// Gradient checkpointing (Chen et al., 2016): a block keeps only its inputs and runs again in backward.
//
// `f` is copied into the tape; wrap a model block in std::cref. Its parameters need not be listed: the second run
// records on an inner tape, which adds to the same Grads. Random numbers inside must be counter-based.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "wick/autograd/tape.h"

namespace wick {

inline const Op kCheckpoint("checkpoint");

template <class F, class... Inputs>
requires std::is_same_v<std::invoke_result_t<F, const Inputs&...>, Tensor> Tensor checkpoint(const F& f,
                                                                                             const Inputs&... x) {
  Tape* tape = Tape::active();
  if (!tape) return f(x...);
  Tensor y = [&] {
    const TapePause pause;
    return f(x...);
  }();
  // Tracked even if no input is: trainable parameters may hide inside f.
  return tape->push(kCheckpoint, y, [=](const Tensor& dy, Grads& grads) {
    Tape inner(Tape::Keep::all);  // no recomputation within a recomputation
    const Tensor again = f(x...);
    inner.backward(again, dy, grads);
  });
}

// The same for a block of several outputs.
template <class F, class... Inputs>
requires(!std::is_same_v<std::invoke_result_t<F, const Inputs&...>, Tensor>) auto checkpoint(const F& f,
                                                                                             const Inputs&... x) {
  Tape* tape = Tape::active();
  if (!tape) return f(x...);
  auto ys = [&] {
    const TapePause pause;
    return f(x...);
  }();
  const auto dys = std::make_shared<decltype(ys)>();
  // The block's turn comes once the gradients that there are lie beside it.
  const Tensor none = Tensor::empty({0}, ys[0].dtype(), ys[0].memory());
  const Tensor block = tape->push(kCheckpoint, none, [=](const Tensor&, Grads& grads) {
    Tape inner(Tape::Keep::all);
    const auto again = f(x...);
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

}  // namespace wick
