// One network of a model with other values in some of its tensors, as its files hold them: under other names, fused,
// split, or with parts in another order (TensorSource::as_stored).
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "wick/nn/source.h"

namespace wick {

class ChangedNetwork {
 public:
  // Makes of a tensor, in f32 on the host and in the layout of memory, one of the same shape: [out, in], and
  // [out, kh, kw, in] of a convolution of more than one pixel.
  using Edit = std::function<Tensor(const Tensor&)>;

  // `source` has the names that the model asks for, which are `tensors`.
  ChangedNetwork(TensorSource source, std::set<std::string> tensors)
      : source_(std::move(source)), tensors_(std::move(tensors)) {}

  void edit(const std::string& tensor, Edit edit) { edits_[tensor] = std::move(edit); }
  size_t edits() const { return edits_.size(); }
  // A tensor in f32, in the layout of memory.
  Tensor in_memory(const std::string& tensor) const;

  // Tensors of the files that change together, by the files' names, and the model's that they make up.
  struct Change {
    std::vector<std::string> stored, tensors;
  };
  std::vector<Change> changes() const;
  // The stored tensors of a change, f32 on the host: as they are, and with all edits. Throws Error for values that are
  // not finite.
  struct Values {
    TensorSource::Tensors before, after;
  };
  Values values(const Change& change) const;

 private:
  std::vector<std::string> stored_names(const std::string& tensor, const Shape& shape) const;
  Tensor in_file(const std::string& tensor) const;

  TensorSource source_;
  std::set<std::string> tensors_;
  std::map<std::string, Edit> edits_;
};

}  // namespace wick
