// Weights that a device has decoded for a product and keeps for their next one: a block that runs again in backward has
// each of its products twice, once for the block's own values and once for dx.
#pragma once

#include <functional>
#include <map>

#include "wick/core/tensor.h"

namespace wick {

class DecodedWeights {
 public:
  static constexpr size_t kRoom = size_t{320} << 20;  // bytes: all of a single block of FLUX.1 in 16 bits

  void keep(bool keep);
  // `w` as numbers of `dtype`: those that were kept, which are given away, or new ones that `decode` writes. These are
  // kept where there is room.
  Tensor operator()(const View& w, DType dtype, Memory& memory, const std::function<void(const View& y)>& decode);

 private:
  bool keeps_ = false;
  size_t bytes_ = 0;                    // of those that are kept
  std::map<const void*, Tensor> kept_;  // by the place of the codes
};

}  // namespace wick
