#include "wick/models/modulation.h"

#include <cstring>

namespace wick {
namespace {

// Through the path by which weights are read: several threads, page-locked memory.
Tensor uploaded(const Tensor& host, Memory& memory) {
  Tensor there = Tensor::empty(host.shape(), host.dtype(), memory);
  const auto bytes = size_t(bytes_of(host.dtype(), host.numel()));
  memory.fill({{there.view().data, bytes,
                [from = host.data<char>()](void* to, size_t at, size_t count) { std::memcpy(to, from + at, count); }}});
  return there;
}

}  // namespace

Tensor Modulations::operator()(const Tensor& vectors) const {
  const TapePause frozen;
  Memory& memory = vectors.memory();
  const Arena arena(memory);  // steps have the visitors' room
  const Tensor rows = Tensor::empty({vectors.dim(0), width_}, vectors.dtype());
  for (const Frozen& f : all_) {
    const Tensor weight = f.weight ? uploaded(f.weight, memory) : Tensor::empty(f.shape, f.dtype, memory);
    const Tensor y = linear(vectors, weight, f.bias);
    if (f.weight) rows.backend().copy(rows.window(y.shape(), rows.stride(), f.first), y.to(host_memory()));
  }
  return rows;
}

Conditioning Modulations::of_step(const Tensor& vector, const Tensor& ahead) const {
  return {vector, ahead_ && !ahead ? (*this)(vector).to(vector.memory()) : ahead};
}

ModulationRows::ModulationRows(const Scope& s, int64_t dim, int64_t count, Modulations& all)
    : dim_(dim), count_(count), first_(all.width_) {
  const Shape shape{count * dim, dim};
  if (all.ahead_) adapter_ = s.adapt(LoraTarget{dim, shape[0]}, {});
  if (!all.ahead_ || (adapter_ && adapter_->needs_weight())) {
    resident_.emplace(s, dim, shape[0]);
    return;
  }
  const bool outline = s.weights().is_outline();
  const DType dtype = s.dtype_of("weight", shape);
  const Tensor weight = outline ? Tensor() : contiguous(cast(s.read("weight", shape), dtype));
  all.all_.push_back({shape, dtype, weight, s.outside_blocks().load_bias("bias", {shape[0]}), first_});
  all.width_ += shape[0];
}

std::vector<Tensor> ModulationRows::operator()(const Conditioning& c) const {
  const std::vector<int64_t> widths(size_t(count_), dim_);
  if (resident_) return split((*resident_)(c.vector), 1, widths);
  const Tensor frozen = slice(c.ahead, 1, first_, first_ + count_ * dim_);
  return split(adapter_ ? adapter_->linear(c.vector, {}, {}, frozen) : frozen, 1, widths);
}

}  // namespace wick
