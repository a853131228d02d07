#include "wick/backend/decoded_weights.h"

namespace wick {

void DecodedWeights::keep(bool keep) {
  keeps_ = keep;
  kept_.clear();
  bytes_ = 0;
}

Tensor DecodedWeights::operator()(const View& w, DType dtype, Memory& memory,
                                  const std::function<void(const View& y)>& decode) {
  const auto bytes = size_t(bytes_of(dtype, w.shape));
  if (const auto found = kept_.find(w.data);
      found != kept_.end() && found->second.shape() == w.shape && found->second.dtype() == dtype) {
    bytes_ -= bytes;
    return kept_.extract(found).mapped();
  }
  Tensor y = Tensor::empty(w.shape, dtype, memory);
  decode(y);
  if (keeps_ && bytes_ + bytes <= kRoom && kept_.emplace(w.data, y).second) bytes_ += bytes;
  return y;
}

}  // namespace wick
