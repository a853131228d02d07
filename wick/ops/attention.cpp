#include "wick/ops/attention.h"

#include <array>
#include <cmath>

#include "wick/ops/shape.h"

namespace wick {
namespace {

const Op kAttention("attention"), kSelfAttention("self_attention"), kCrossAttention("cross_attention"),
    kJointAttention("joint_attention");

// The contract wants the features of a head side by side.
Tensor dense_heads(const Tensor& x) { return x.dim(-1) == 1 || x.stride().back() == 1 ? x : contiguous(x); }

// Number `which` of `count` tensors [B, T, H, D] that lie side by side in x [B, T, count H D].
Tensor heads_of(const Tensor& x, int64_t heads, int count = 1, int which = 0) {
  const int64_t width = x.dim(2) / count, features = width / heads;
  const Shape& stride = x.stride();
  return x.window({x.dim(0), x.dim(1), heads, features}, {stride[0], stride[1], features * stride[2], stride[2]},
                  which * width * stride[2]);
}

void check_heads(const char* op, const Tensor& x, int64_t heads, int count) {
  check(x.rank() == 3 && heads > 0 && x.dim(2) % (count * heads) == 0,
        "{}: the width of {} does not split into {} times {} heads", op, x.shape(), count, heads);
}

// Attention, computed, and the tensors that backward needs.
struct Attended {
  Tensor q, k, v, ranges;
  bool causal;
  float scale;
  Tensor y = Tensor::empty(q.shape(), q.dtype(), q.memory());
  Tensor lse = Tensor::empty({q.dim(0), q.dim(2), q.dim(1)}, DType::f32, q.memory());

  Attended(Tensor queries, Tensor keys, Tensor values, bool is_causal, float scaled_by, Tensor key_ranges = {})
      : q(std::move(queries)),
        k(std::move(keys)),
        v(std::move(values)),
        ranges(std::move(key_ranges)),
        causal(is_causal),
        scale(scaled_by) {
    check(!causal || q.dim(1) == k.dim(1), "attention: a causal mask needs as many keys as queries, got {} and {}",
          k.dim(1), q.dim(1));
    check(k.dim(1) > 0 && q.dim(3) > 0, "attention: there is nothing to attend to in {}", k.shape());
    if (scale == 0) scale = 1.0f / std::sqrt(float(q.dim(3)));
    q.backend().attention(args());
  }

  void backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy) const {
    const Tensor dense = dense_heads(dy);
    q.backend().attention_backward(args(), {.dq = dq, .dk = dk, .dv = dv, .dy = dense});
  }
  AttentionArgs args() const {
    return {.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = scale, .causal = causal, .ranges = ranges};
  }
};

void check_ranges(const Tensor& ranges, const Tensor& q, int64_t keys) {
  const Shape shape{q.dim(0), q.dim(1), 2};
  check(ranges.shape() == shape && ranges.dtype() == DType::i32, "attention: ranges should be i32 {}, found {} {}",
        shape, name_of(ranges.dtype()), ranges.shape());
  if (!ranges.memory().on_host()) return;  // they reach a device through a checked host tensor
  check(ranges.contiguous(), "attention: ranges should be contiguous");
  for (int64_t b = 0; b < shape[0]; ++b) {
    int64_t first = 0, last = 0;  // of the query before
    for (int64_t t = 0; t < shape[1]; ++t) {
      const int32_t* bounds = ranges.data<int32_t>() + 2 * (b * shape[1] + t);
      check(first <= bounds[0] && last <= bounds[1] && bounds[0] <= bounds[1] && bounds[1] <= keys,
            "attention: query {} of entry {} sees keys [{}, {}) of {}, the query before it [{}, {})", t, b, bounds[0],
            bounds[1], keys, first, last);
      first = bounds[0], last = bounds[1];
    }
  }
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, const Tensor& ranges, float scale) {
  const Attended a(dense_heads(q.detached()), dense_heads(k.detached()), dense_heads(v.detached()), causal, scale,
                   ranges);
  return record(kAttention, a.y, {q, k, v},
                [a, q = Input(q), k = Input(k), v = Input(v)](const Tensor& dy, Grads& grads) {
                  const auto room = [&](const Input& x) { return grads.wants(x) ? x.room() : Tensor(); };
                  const Tensor dq = room(q), dk = room(k), dv = room(v);
                  a.backward(dq, dk, dv, dy);
                  grads.add(q, dq);
                  grads.add(k, dk);
                  grads.add(v, dv);
                });
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, float scale) {
  check(q.rank() == 4 && k.rank() == 4 && k.shape() == v.shape() && q.dim(0) == k.dim(0) && q.dim(2) == k.dim(2) &&
            q.dim(3) == k.dim(3),
        "attention: q {}, k {}, v {} do not fit [B, T, H, D], [B, S, H, D], [B, S, H, D]", q.shape(), k.shape(),
        v.shape());
  return attend(q, k, v, causal, {}, scale);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& ranges, float scale) {
  check(q.rank() == 4 && k.rank() == 4 && k.shape() == v.shape() && q.dim(0) == k.dim(0) && q.dim(3) == k.dim(3) &&
            k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0,
        "attention: q {}, k {}, v {} do not fit [B, T, H, D], [B, S, G, D], [B, S, G, D] where G divides H", q.shape(),
        k.shape(), v.shape());
  check_ranges(ranges, q, k.dim(1));
  return attend(q, k, v, false, ranges, scale);
}

Tensor self_attention(const Tensor& qkv, int64_t heads, bool causal, float scale) {
  check_heads("self_attention", qkv, heads, 3);
  const Tensor x = dense_heads(qkv.detached());
  const Attended a(heads_of(x, heads, 3, 0), heads_of(x, heads, 3, 1), heads_of(x, heads, 3, 2), causal, scale);
  return record(kSelfAttention, merge_heads(a.y), {qkv}, [a, heads, qkv = Input(qkv)](const Tensor& dy, Grads& grads) {
    const Tensor dx = qkv.empty();
    a.backward(heads_of(dx, heads, 3, 0), heads_of(dx, heads, 3, 1), heads_of(dx, heads, 3, 2), heads_of(dy, heads));
    grads.add(qkv, dx);
  });
}

Tensor cross_attention(const Tensor& q, const Tensor& kv, int64_t heads, float scale) {
  check_heads("cross_attention", q, heads, 1);
  check_heads("cross_attention", kv, heads, 2);
  check(q.dim(0) == kv.dim(0) && 2 * q.dim(2) == kv.dim(2), "cross_attention: q {} and kv {} do not fit", q.shape(),
        kv.shape());
  const Tensor x = dense_heads(q.detached()), context = dense_heads(kv.detached());
  const Attended a(heads_of(x, heads), heads_of(context, heads, 2, 0), heads_of(context, heads, 2, 1), false, scale);
  return record(kCrossAttention, merge_heads(a.y), {q, kv},
                [a, heads, q = Input(q), kv = Input(kv)](const Tensor& dy, Grads& grads) {
                  const bool to_kv = grads.wants(kv);
                  const Tensor dq = grads.wants(q) ? q.empty() : Tensor(), dkv = to_kv ? kv.empty() : Tensor();
                  a.backward(dq ? heads_of(dq, heads) : Tensor(), to_kv ? heads_of(dkv, heads, 2, 0) : Tensor(),
                             to_kv ? heads_of(dkv, heads, 2, 1) : Tensor(), heads_of(dy, heads));
                  grads.add(q, dq);
                  grads.add(kv, dkv);
                });
}

namespace {

// Rows [begin, begin + count) of the second axis.
Tensor tokens_of(const Tensor& x, int64_t begin, int64_t count) {
  Shape shape = x.shape();
  shape[1] = count;
  return x.window(shape, x.stride(), begin * x.stride()[1]);
}
Tensor rows_of(const Tensor& table, int64_t begin, int64_t count) {
  return table ? table.window({count, table.dim(1)}, table.stride(), begin * table.stride()[0]) : table;
}

// The values behind a joint attention.
struct Joint {
  std::vector<AttentionStream> streams;
  JointAttention a;

  int64_t features() const { return streams.front().qkv.dim(2) / (3 * a.heads); }
  Shape shape() const {
    Shape all = streams.front().qkv.shape();
    for (size_t i = 1; i < streams.size(); ++i) all[1] += streams[i].qkv.dim(1);
    return all;
  }
  Tensor in_heads(const Tensor& x) const {  // [B, T, 3 H D] as [B, T, 3, H, D]
    const Shape& step = x.stride();
    const int64_t width = features();
    return x.window({x.dim(0), x.dim(1), 3, a.heads, width}, {step[0], step[1], a.heads * width, width, 1});
  }
  // Calls f(stream, its arguments without y, its first token).
  template <class F>
  void each(const F& f) const {
    int64_t begin = 0;
    for (const AttentionStream& stream : streams) {
      const int64_t count = stream.qkv.dim(1);
      f(stream,
        QkNormRopeArgs{.y = {},
                       .x = in_heads(stream.qkv),
                       .q_norm = stream.q_norm,
                       .k_norm = stream.k_norm,
                       .cos = rows_of(a.rotary.cos, begin, count),
                       .sin = rows_of(a.rotary.sin, begin, count),
                       .eps = a.eps},
        begin);
      begin += count;
    }
  }
  Tensor prepared() const {
    const Tensor& like = streams.front().qkv;
    Tensor all = Tensor::empty(shape(), like.dtype(), like.memory());
    each([&](const AttentionStream& stream, QkNormRopeArgs args, int64_t begin) {
      args.y = in_heads(tokens_of(all, begin, stream.qkv.dim(1)));
      all.backend().qk_norm_rope(args);
    });
    return all;
  }
  AttentionArgs attention(const Tensor& qkv, const Tensor& y, const Tensor& lse) const {
    return {.y = y,
            .lse = lse,
            .q = heads_of(qkv, a.heads, 3, 0),
            .k = heads_of(qkv, a.heads, 3, 1),
            .v = heads_of(qkv, a.heads, 3, 2),
            .scale = 1.0f / std::sqrt(float(features())),
            .ranges = a.ranges};
  }
};

Joint checked_joint(const std::vector<AttentionStream>& streams, const JointAttention& a) {
  check(!streams.empty(), "joint_attention: there is no stream");
  Joint joint{{}, a};
  const auto& [heads, rotary, ranges, eps] = a;
  const Tensor& first = streams.front().qkv;
  for (const auto& [qkv, q_norm, k_norm] : streams) {
    check_heads("joint_attention", qkv, heads, 3);
    check(qkv.dim(0) == first.dim(0) && qkv.dim(2) == first.dim(2), "joint_attention: {} and {} do not fit",
          first.shape(), qkv.shape());
    for (const Tensor& norm : {q_norm, k_norm})
      check(bool(norm) == bool(q_norm) && (!norm || norm.shape() == Shape{qkv.dim(2) / (3 * heads)}),
            "joint_attention: norms {} and {} do not fit the heads of {}, {} in number", q_norm.shape(), k_norm.shape(),
            qkv.shape(), heads);
    joint.streams.push_back({dense_heads(qkv.detached()), q_norm.detached(), k_norm.detached()});
  }
  const Shape table{joint.shape()[1], joint.features() / 2};
  for (const Tensor& angles : {rotary.cos, rotary.sin})
    check(bool(angles) == bool(rotary.cos) && (!angles || (angles.shape() == table && joint.features() % 2 == 0)),
          "joint_attention: expected angles {}, found {}", table, angles.shape());
  const Shape shape{first.dim(0), table[0], 2};
  check(!ranges || (ranges.shape() == shape && ranges.dtype() == DType::i32),
        "joint_attention: expected ranges i32 {}, found {}", shape, ranges.shape());
  return joint;
}

}  // namespace

Tensor joint_attention(const std::vector<AttentionStream>& streams, const JointAttention& a) {
  const Joint joint = checked_joint(streams, a);
  const int64_t heads = a.heads;
  const Tensor qkv = joint.prepared();
  const Shape shape{qkv.dim(0), qkv.dim(1), heads, joint.features()};
  const Tensor y = Tensor::empty(shape, qkv.dtype(), qkv.memory());
  const Tensor lse = Tensor::empty({shape[0], heads, shape[1]}, DType::f32, qkv.memory());
  y.backend().attention(joint.attention(qkv, y, lse));
  const Tensor merged = merge_heads(y);
  std::vector<std::array<Input, 3>> inputs;
  bool is_tracked = false;
  for (const auto& [x, q_norm, k_norm] : streams) {
    inputs.push_back({x, q_norm ? q_norm : x.detached(), k_norm ? k_norm : x.detached()});
    for (const Input& input : inputs.back()) is_tracked = is_tracked || input.tracked();
  }
  if (!is_tracked || !Tape::active()) return merged;
  const Tensor kept = Tape::runs_again() ? qkv : Tensor();
  return Tape::active()->push(kJointAttention, merged, [=](const Tensor& dy, Grads& grads) {
    const Tensor again = kept ? kept : joint.prepared(), dqkv = Input(again).empty(), dense = dense_heads(dy);
    const auto part = [&](int which) { return heads_of(dqkv, heads, 3, which); };
    dy.backend().attention_backward(joint.attention(again, y, lse),
                                    {.dq = part(0), .dk = part(1), .dv = part(2), .dy = heads_of(dense, heads)});
    auto input = inputs.begin();
    joint.each([&](const AttentionStream& stream, const QkNormRopeArgs& args, int64_t begin) {
      const auto& [of_x, of_q_norm, of_k_norm] = *input++;
      const Tensor dx = of_x.room();
      const auto gradient = [](const Input& x) { return x.tracked() ? x.empty() : Tensor(); };
      const Tensor dq_norm = gradient(of_q_norm), dk_norm = gradient(of_k_norm);
      dx.backend().qk_norm_rope_backward(args, {.dx = joint.in_heads(dx),
                                                .dq_norm = dq_norm,
                                                .dk_norm = dk_norm,
                                                .dy = joint.in_heads(tokens_of(dqkv, begin, stream.qkv.dim(1)))});
      grads.add(of_x, dx);
      grads.add(of_q_norm, dq_norm);
      grads.add(of_k_norm, dk_norm);
    });
  });
}

}  // namespace wick
