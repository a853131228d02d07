// Gradient checkpointing (Chen et al., 2016): a block keeps only its inputs and runs again in backward.
//
// `f` is copied into the tape; wrap a model block in std::cref. Its parameters need not be listed: the second run
// records on an inner tape, which adds to the same Grads. Random numbers inside must be counter-based.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

inline const Op kCheckpoint("checkpoint");

template <class F, class... Inputs>
Tensor checkpoint(const F& f, const Inputs&... x) {
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

}  // namespace wick
