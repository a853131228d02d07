#include "wick/ops/embedding.h"

namespace wick {
namespace {

const Op kEmbedding("embedding");
const Op kTimestepEmbedding("timestep_embedding", Op::Kind::not_differentiable);

void check_ids(const Tensor& ids, int64_t count) {
  check(ids.dtype() == DType::i64, "embedding: ids must be i64, got {}", name_of(ids.dtype()));
  if (!ids.memory().on_host()) return;  // ids reach a device through a checked host tensor
  check(ids.contiguous(), "embedding: ids must be contiguous");
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t id = ids.data<int64_t>()[i];
    check(0 <= id && id < count, "embedding: id {} is not within a table of {} rows", id, count);
  }
}

}  // namespace

Tensor embedding(const Tensor& table, const Tensor& host_ids, DType dtype) {
  check(table.rank() == 2, "embedding: the table must be [V, D], got {}", table.shape());
  check_ids(host_ids, table.dim(0));
  const Tensor ids = host_ids.to(table.memory());
  Shape shape = ids.shape();
  shape.push_back(table.dim(1));
  Tensor y = Tensor::empty(shape, dtype, table.memory());
  table.backend().embedding(y, table, ids);
  return record(kEmbedding, y, {table}, [table = Input(table), ids](const Tensor& dy, Grads& grads) {
    Tensor dtable = table.empty();
    dtable.backend().embedding_backward(dtable, dy, ids);
    grads.add(table, dtable);
  });
}

Tensor timestep_embedding(const Tensor& t, int dim, float max_period) {
  check(t.rank() == 1 && dim >= 2 && dim % 2 == 0,
        "timestep_embedding: expected t [N] and an even width, got {} and {}", t.shape(), dim);
  Tensor y = Tensor::empty({t.dim(0), dim}, DType::f32, t.memory());
  t.backend().timestep_embedding(y, t, max_period);
  return y;
}

}  // namespace wick
