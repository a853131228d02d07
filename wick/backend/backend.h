// The contract between operations and devices: one abstract class of plain views and scalars, in two tiers. Every
// device implements the first. ComposedBackend (composed.h) makes the second of calls of the first; a device overrides
// the compositions that it can beat.
//
// Rules, the same for every call and every backend:
//  - Shapes are already checked by wick/ops; a backend may assert them. Views may be strided unless said otherwise.
//  - Outputs are overwritten and may hold anything before. An empty View (no data) is an optional input that is absent,
//    or an output that is not wanted. Outputs do not overlap inputs unless said otherwise.
//  - Activations are f32, or (on CUDA) bf16/f16; weights `w` may have another float dtype than the activations; vectors
//    of norms, biases, statistics, losses and LoRA factors are f32. Sums are accumulated in f32 or better.
//  - `w` of linears, b of a matmul, and tables may be frozen blocks (core/blocks.h) along their rows; copy() decodes
//    blocks and makes them. linear() of blocks may round x to 8 bits in blocks of 32 on the CPU.
//  - Beside `w` in fp8_product (core/row_formats.h), x of a linear and dy of its dx, which is a matmul() by w with
//  alpha
//    1 and beta 0, are rounded to 8 bits by rows, dy after it was multiplied by the scales of w's rows.
//  - The same call with the same arguments gives the same bits.
//  - Nothing here waits for the host: a step made of these calls can be captured.
//
// Shapes: B batch, T tokens, D features, H heads (attention) or height (images), W width, C channels, M/N/K matrix
// sides, R rank of a LoRA. Images are [B, H, W, C]; convolution weights are [O, KH, KW, I]; linear weights [out, in].
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "wick/core/tensor.h"

namespace wick {

enum class Unary : uint8_t { silu, gelu, gelu_tanh, quick_gelu, exp, square, rsqrt };
enum class Binary : uint8_t { add, sub, mul };

struct Conv2d {  // padding is in pixels on each side, so that the VAE's (0, 1, 0, 1) fits
  int stride = 1;
  int top = 0, left = 0, bottom = 0, right = 0;
};

// Follows a norm of rows: y * (1 + scale) + shift with scale and shift [B, D], of any float dtype, one row of each for
// all of x[b] (the AdaLN of diffusion transformers). Either may be empty.
struct Modulation {
  View scale, shift;
};

// A group norm of x [B, ..., C]: y = act((x - mean) * rstd * w + b), act = silu if asked. Backward takes
// mean and rstd as forward wrote them.
struct GroupNormArgs {
  View y;           // like x: out; backward does not read it
  View mean, rstd;  // f32 [B, groups]: out, for backward; may be unwanted
  View x;
  View w, b;  // [C]
  int groups = 1;
  float eps = 0;  // is added to the variance
  bool silu = false;
};
// A norm of rows of x [B, ..., D]: y = x_hat * w + b, then modulated. Backward takes mean and rstd as
// forward wrote them.
struct NormArgs {
  View y;           // like x: out; backward does not read it
  View mean, rstd;  // f32 [B, ...]: out, for backward; may be unwanted. rms_norm has no mean
  View x;
  View w, b;  // [D], may be empty. rms_norm has no b
  Modulation m = {};
  float eps = 0;  // is added to the variance, or to the mean square
};
// x + gate * h with gate [B, D] beside all rows of h [B, ..., D].
struct GatedSum {
  View x, gate, h;
};
// All but dy and residual are outputs, each of which may be unwanted.
struct NormGradients {
  View dx, dw, db;
  Modulation dm = {};  // norms of rows alone
  View dy;
  View residual = {};  // norms of rows alone: the gradient that reached x by other ways, added to dx
};

// Attention: y = softmax(scale * q k^T) v, over views of any strides with D contiguous; G divides H, and head h reads
// keys and values h / (H / G) (Ainslie et al., "GQA", 2023). A query sees all keys; or, `causal`, those up to its own
// place (T = S); or, with `ranges`, keys first <= s < last; none where first = last, and then y is 0. Neither bound
// falls as t grows within an entry, so that a tile of queries sees a range of keys and a tile of keys is seen by a
// range of queries. Ranges express causality, sliding windows, packed documents, padding, and how far a cache is
// filled: keys and values that no query of an entry reaches, before its first and after its last, may hold anything.
// Ranges lie on the device, and a replayed step reads their values at that time. Backward takes y and lse as forward
// wrote them.
struct AttentionArgs {
  View y;     // [B, T, H, D]: out
  View lse;   // f32 [B, H, T]: out, the logarithm of each query's sum of exponentials, for backward; may be unwanted
  View q;     // [B, T, H, D]
  View k, v;  // [B, S, G, D]
  float scale = 1;
  bool causal = false;
  View ranges = {};  // i32 [B, T, 2] or empty
};
// All but dy are outputs, each of which may be unwanted.
struct AttentionGradients {
  View dq, dk, dv;
  View dy;
};

// Dropout (Srivastava et al., 2014) of a LoRA's input. Row-major over its shape, x's elements are S equal stretches,
// one of each sample of the batch: element i of stretch s is kept and divided by 1 - p where word i % 4 of philox(seed,
// Stream::dropout, draw[s] << 32 | i / 4) is at least p * 2^32, else it becomes zero. The mask is never stored:
// backward makes it again.
struct Dropout {
  float p = 0;        // 0 keeps x as it is
  uint64_t seed = 0;  // of the layer
  View draw;  // i64 [S] on the device, packed, below 2^32: others for each batch, also when a captured step is replayed

  int64_t stretch(int64_t elements) const {
    check(elements % draw.numel() == 0, "dropout: {} elements are not {} equal stretches", elements, draw.numel());
    return elements / draw.numel();
  }
};
// The LoRA of a linear, or of several that share x and lie side by side in one: block g makes columns
// [column, column + N_g) of y from columns [row, row + R_g) of s = dropout(x) down^T. Blocks overlap nowhere. Columns
// of y without one have no LoRA. Rows of down without one are zero: they pad R, and ddown is zero there too.
struct LoraBlock {
  View up;  // [N_g, R_g]
  int64_t column = 0, row = 0;
  float scale = 1;
};
struct LoraFactors {
  View down;  // [R, K], the rows of all blocks
  std::vector<LoraBlock> blocks;
  Dropout dropout = {};
};

// A linear with LoRA: y [..., N] = x w^T + bias + residual, and each block g of the factors adds scale_g * s_g up_g^T
// to its columns. Without w the adapter alone is added to y as it is, and there is neither bias nor residual.
struct LoraArgs {
  View y;     // [..., N]: out; backward does not read it
  View s;     // [..., R]: out, dropout(x) down^T, for backward; may be unwanted
  View x;     // [..., K]
  View w;     // [N, K] or empty
  View bias;  // [N] or empty
  // f32 or, on CUDA, in the dtype of the activations (OptimizerSlot::copy), which saves converting them.
  LoraFactors lora;
  View residual = {};  // [..., N] or empty
};
// All but dy are outputs, each of which may be unwanted. The factors' are f32; `dups` has one for each block, or none
// at all.
struct LoraGradients {
  View dx, ddown;
  std::vector<View> dups = {};
  View dy;
};

// Which of a head's features turn together: 2i and 2i + 1 (FLUX), or i and i + D/2 (Llama).
enum class RopePairs : uint8_t { neighbours, halves };

// Prepares attention over a KV cache for a few new tokens: turned = rope(q); keys[b, rows[b, t]] = rope(k)[b, t] and
// values[b, rows[b, t]] = v[b, t].
struct RopeIntoCacheArgs {
  View turned;        // [B, T, H, D]: out
  View keys, values;  // [B, S, G, D]: rows of them are written
  View q;             // [B, T, H, D]
  View k, v;          // [B, T, G, D]
  View cos, sin;      // as for rope()
  RopePairs pairs = RopePairs::halves;
  View rows;  // i32 [B, T], as for scatter_rows()
};

// Prepares queries and keys of x [B, T, 3, H, D] (queries, keys, values) for attention: each head of them is normed
// (rms_norm(), "QK norm" of Dehghani et al., 2023) and then turned (rope() of neighbours); values stay as they are.
struct QkNormRopeArgs {
  View y;  // like x: out; backward does not read it
  View x;
  View q_norm, k_norm;  // [D], or both empty: heads are not normed
  View cos, sin;        // f32 [T, D/2], or both empty: heads are not turned
  float eps = 0;        // is added to the mean square
};
// All but dy are outputs. The gradients of the norms may be unwanted.
struct QkNormRopeGradients {
  View dx;
  View dq_norm = {}, dk_norm = {};
  View dy;
};

// How gradients become updates. A rule may keep states of each parameter from step to step (OptimizerSlot::states), and
// scalars of its own behind the StepScalars. States are f32 in the parameter's shape and begin at zero, but where said.
//
// States in 8 bits are u8 codes in the parameter's shape and an f32 [ceil(numel / 256)], the largest magnitude of each
// 256 elements in row-major order, which the codes scale (core/dynamic_map.h). Parameters of fewer than kFewestFor8Bit
// elements keep the f32 states of the rule without the 8, as those of bitsandbytes do.
enum class OptimizerKind : uint8_t {
  // m, v. Loshchilov & Hutter, 2019, as torch.optim.AdamW computes it.
  adamw,
  // m and v as codes, then the magnitudes of m and of v. Dettmers et al., 2022, as bitsandbytes.optim.AdamW8bit: the
  // update takes m and v before they are rounded, and the parameter decays after it.
  adamw8bit,
  // m. Chen et al., 2023.
  lion,
  // m as codes, its magnitudes. As bitsandbytes.optim.Lion8bit.
  lion8bit,
  // Shazeer & Stern, 2018, as Adafactor of transformers computes it without beta1: second moments alone. The rate comes
  // from outside; AdafactorRule has the rest. Of a parameter [..., M, N]: row means [..., M], column means [..., N]; of
  // a vector: v.
  adafactor,
  // m, v, s, and the parameter's first value. Mishchenko & Defazio, 2023, as prodigyopt computes it (ProdigyRule).
  prodigy,
  // v, and z, which begins at the parameter's value. Defazio et al., 2024, AdamWScheduleFree of schedulefree: the
  // parameter is y, where gradients are taken; the average that is the result is x = y + (1 - 1 / beta1) (z - y).
  schedule_free,
  // The same states. RAdamScheduleFree of schedulefree with silent_sgd_phase: the rate is multiplied by the
  // rectification of RAdam (Liu et al., 2020), which is 0 in the first steps.
  radam_schedule_free,
};
constexpr bool is_schedule_free(OptimizerKind kind) {
  return kind == OptimizerKind::schedule_free || kind == OptimizerKind::radam_schedule_free;
}
inline constexpr int64_t kFewestFor8Bit = 4096, k8BitBlock = 256;

// Arguments of transformers' Adafactor. The defaults are those of scale_parameter False.
struct AdafactorRule {
  double eps = 1e-30;            // is added to each squared gradient
  double scale_eps = 1e-3;       // the least scale of scale_parameter
  double clip_threshold = 1;     // the most that the root mean square of an update may be
  double decay_rate = -0.8;      // of step t: second moments keep 1 - t^decay_rate
  bool scale_parameter = false;  // multiplies the rate by the root mean square of the parameter before the step
};
// Arguments of prodigyopt's Prodigy.
struct ProdigyRule {
  float d0 = 1e-6f;                                            // the first estimate
  float d_coef = 1;                                            // multiplies each new estimate
  float growth_rate = std::numeric_limits<float>::infinity();  // the most by which the estimate grows in a step
  float beta3 = -1;                                            // of the estimate's sums; below 0: sqrt(beta2)
  bool use_bias_correction = true, safeguard_warmup = true, decouple = true;
  int64_t slice_p = 1;  // the estimate reads each slice_p-th element of a parameter in row-major order, from the first
};
// Arguments of schedulefree's optimizers: step k, from 1, has the weight k^r * (largest rate so far)^weight_lr_power.
struct ScheduleFreeRule {
  double r = 0, weight_lr_power = 2;
};
struct OptimizerRule {
  OptimizerKind kind = OptimizerKind::adamw;
  // Adafactor has no betas, and AdafactorRule's in place of eps; Lion has no eps.
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  AdafactorRule adafactor = {};
  ProdigyRule prodigy = {};
  ScheduleFreeRule schedule_free = {};
};
// One tensor of an optimizer step; all are contiguous. Parameter, gradient and average are f32.
struct OptimizerSlot {
  View param, grad;
  std::vector<View> states;  // in the rule's order, of the rule's shapes and dtypes
  View average = {};         // follows the parameter: average += (1 - decay) * (param - average); may be empty
  View copy = {};            // of the updated parameter in the dtype that kernels compute with; may be empty
  float rate = 1;            // times the learning rate; Prodigy, which finds one for all, takes no other
};
// How a moving average begins, or its start would linger: update t, counted from 1, decays by at most (1 + t) / (10 +
// t) as TensorFlow's ExponentialMovingAverage with num_updates has it, or by at most 1 - t^(-2/3), as diffusers'
// EMAModel with use_ema_warmup; or by as much as all.
enum class AverageWarmup : uint8_t { updates, power, none };
// The part that all rules share.
struct OptimizerStep {
  OptimizerRule rule = {};
  float max_grad_norm = 0;  // clips the norm over all gradients together, as PyTorch's clip_grad_norm_ does; 0 does not
  float average_decay = 0;
  AverageWarmup average_warmup = AverageWarmup::updates;
  bool scales_loss = false;  // kLossScale is adapted: half where a norm is not finite, twice after 2000 that were
};
// The numbers that change from step to step lie beside the parameters, in a View of f32, so that a captured step can be
// replayed: kStepScalars of them, and behind those the rule's own, scalars_of(rule) together. The caller writes the
// first two and initialises the rest; sum_of_squares() and optimizer_step() update them.
enum StepScalar : int {
  kLr,            // learning rate
  kGradScale,     // multiplies each gradient, before clipping: 1/N of accumulation
  kLossScale,     // factor of the loss (1 unless gradients would underflow); divides each gradient
  kGoodSteps,     // finite norms since kLossScale last changed
  kSteps,         // updates made; a bias correction counts from 1
  kSumOfSquares,  // over all gradients as they are
  kGradNorm,      // of the scaled gradients, before clipping
  kHalted,        // 1 once a norm was not finite and no smaller loss scale can help; from then on nothing is changed
  kStepScalars
};
// Prodigy's. Steps without a learning rate, or before the first gradient that is not zero, change nothing.
enum ProdigyScalar : int {
  kProdigyD = kStepScalars,  // the largest estimate so far of the distance to the solution; begins at d0
  kProdigyNumerator,         // of the estimate
  kProdigyUpdates,           // for the bias correction
  kProdigyScalars,
  // With a finite growth_rate alone: the largest estimate, which kProdigyD then follows; begins at d0.
  kProdigyLargestD = kProdigyScalars
};
// Schedule-free's. The sum is of the steps' weights: as one f32 it would lose its terms in long runs.
enum ScheduleFreeScalar : int {
  kWeightSum = kStepScalars,
  kWeightSumRest,  // what rounding took from kWeightSum
  kLargestLr,
  kScheduleFreeScalars
};
constexpr bool limits_growth(const OptimizerRule& rule) {
  return rule.kind == OptimizerKind::prodigy && rule.prodigy.growth_rate < std::numeric_limits<float>::infinity();
}
constexpr int scalars_of(const OptimizerRule& rule) {
  return rule.kind == OptimizerKind::prodigy ? int(kProdigyScalars) + int(limits_growth(rule))
         : is_schedule_free(rule.kind)       ? int(kScheduleFreeScalars)
                                             : int(kStepScalars);
}

// A sequence of calls that was recorded once: the same kernels on the same addresses.
class Replay {
 public:
  virtual ~Replay() = default;
  virtual void run() = 0;
};

// The use of a collective. `are_threads`: all members are of this process. `are_light`: its sums would take a small
// part of a step through the host's memory too.
struct CollectiveUse {
  bool are_threads = false, are_light = false;
};

// One device of several that sum tensors. All of them make the same calls in the same order, each from a thread of its
// own, and destroy it together, after every Replay that holds its calls. A member that gives up aborts first.
//
// sum() and broadcast() are enqueued: they begin behind what was enqueued before, and run beside what is enqueued after
// them until join(). Both may be captured, with a join() of their own behind them.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual void sum(View x) = 0;                  // x, contiguous f32, becomes the sum over all: the same bits on all
  virtual void broadcast(View x, int from) = 0;  // x, contiguous and of any dtype, becomes that of rank `from`
  virtual void join() = 0;                       // what is enqueued from now on sees the results
  // From any thread: what waits for another member ends, with undefined values, and later calls throw an Error.
  virtual void abort() noexcept = 0;
};

// One of many tensors that are copied at once: x is f32, and y, of its shape, of floats in rows that may lie apart; one
// launch copies all of which x has such rows too. No two y overlap, nor a y with an x.
struct Copied {
  View y, x;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  virtual Memory& memory() = 0;
  // The dtype of activations for weights that are kept so: a device computes in it, and in bf16 where they are blocks;
  // the CPU always in f32.
  virtual DType computes_in(DType weights) const { return is_quantized(weights) ? DType::bf16 : weights; }
  // Whether products with fp8_product are for it: not where a device lacks tensor cores for them, and would only be
  // slow. The CPU has the same numbers by other means, for tests and to go on with a device's run.
  virtual bool multiplies_fp8() const { return true; }
  // Loads on another thread what convolutions and attention load when they first run: told early, a program that will
  // run them waits less for its first step. Nothing else depends on it.
  virtual void warm_up() {}
  // Whether weights that are decoded for a product are kept for their next one (decoded_weights.h). No bit changes.
  virtual void keep_decoded(bool) {}
  // Products and convolutions of f32 may round their factors to TF32 (10 bits of mantissa), where a device has units
  // for it; they do not unless asked.
  virtual void allow_tf32(bool) {}

  // ==== The first tier: every device implements it.

  // ---- moving and making data
  // y = x, converting between dtypes (floats among themselves, integers among themselves). x may have stride 0.
  virtual void copy(View y, View x) = 0;
  virtual void fill(View y, float value) = 0;
  // y contiguous f32. Element 4i+j takes word j of philox(seed, stream, position + i); core/rng.h turns words into
  // numbers (normals: words 0,1 give elements 0,1 and words 2,3 give elements 2,3).
  virtual void fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) = 0;
  virtual void fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) = 0;

  // ---- elementwise and reductions. Views of one call may differ in dtype, and y may be x, a or b.
  virtual void unary(Unary op, View y, View x) = 0;
  virtual void unary_backward(Unary op, View dx, View dy, View x) = 0;
  virtual void binary(Binary op, View y, View a, View b) = 0;    // a, b have y's shape; broadcast dims have stride 0
  virtual void clamp(View y, View x, float min, float max) = 0;  // NaN stays NaN
  virtual void clamp_backward(View dx, View dy, View x, float min, float max) = 0;  // dy where min <= x <= max, else 0
  virtual void sum(View y, View x) = 0;  // y has x's rank; sums over the dims where y has extent 1
  // total, one f32, is not finite if any element is not.
  virtual void sum_of_squares(View total, const std::vector<View>& tensors) = 0;
  // ids i64 [N]: the column of the largest of each row of x [N, V], the first of equals; largest f32 [N]: its value,
  // and may be unwanted. NaN counts as larger than anything.
  virtual void argmax(View ids, View largest, View x) = 0;

  // ---- matrix products. a [..., M, K] times b [..., K, N]; batch dims may have stride 0.
  virtual void matmul(View c, View a, View b, float alpha, float beta) = 0;  // c = alpha * a b + beta * c
  // y [..., N] = x [..., K] w[N, K]^T + bias [N] + residual [..., N]. The last two may be missing.
  virtual void linear(View y, View x, View w, View bias, View residual = {}) = 0;
  // y = dropout(x) of one shape, or y += dropout(x). y may be x.
  virtual void dropout(View y, View x, const Dropout& dropout, bool add) = 0;

  // ---- convolution
  // y [B, H', W', O] = x [B, H, W, I] convolved with w [O, KH, KW, I] + bias [O] + `added` of y's shape, whose strides
  // may be 0. The last two may be missing.
  virtual void conv2d(View y, View x, View w, View bias, View added, Conv2d conv) = 0;
  virtual void conv2d_backward_input(View dx, View dy, View w, Conv2d conv) = 0;
  virtual void conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) = 0;

  // ---- norms
  virtual void group_norm(const GroupNormArgs& a) = 0;
  virtual void group_norm_backward(const GroupNormArgs& a, const NormGradients& g) = 0;
  // x_hat is (x - mean) * rstd, or x * rstd with rstd = 1 / sqrt(mean(x^2) + eps) (Zhang & Sennrich, 2019).
  virtual void layer_norm(const NormArgs& a) = 0;
  virtual void layer_norm_backward(const NormArgs& a, const NormGradients& g) = 0;
  virtual void rms_norm(const NormArgs& a) = 0;
  virtual void rms_norm_backward(const NormArgs& a, const NormGradients& g) = 0;

  // ---- attention
  virtual void attention(const AttentionArgs& a) = 0;
  virtual void attention_backward(const AttentionArgs& a, const AttentionGradients& g) = 0;

  // ---- rotary positions (Su et al., 2021): each pair (a, b) of x [B, T, H, D] becomes (a cos - b sin, a sin + b cos),
  // with cos and sin f32, [T, D/2] or [B, T, D/2]. `inverse` turns back, which is the gradient. y may be x.
  virtual void rope(View y, View x, View cos, View sin, RopePairs pairs, bool inverse) = 0;
  // cos and sin f32 [..., D/2] of angles: positions i32 [...] times frequencies f32 [D/2], rounded to f32. All packed.
  virtual void rope_angles(View cos, View sin, View positions, View frequencies) = 0;
  // t [N] -> y [N, D]: cos in the first half and sin in the second, of t * max_period^(-i / (D/2)), computed in f32.
  virtual void timestep_embedding(View y, View t, float max_period) = 0;

  // ---- tables: ids i64 of any shape, y = ids' shape + [D]. Ids were range-checked when they came from outside.
  virtual void embedding(View y, View table, View ids) = 0;
  virtual void embedding_backward(View dtable, View dy, View ids) = 0;
  // y [B, S, ...] gets the rows of x [B, T, ...]: y[b, rows[b, t]] = x[b, t], converted as copy() does; rows i32 [B, T]
  // are all different within an entry, or negative: those tokens go nowhere. The rest of y stays as it is.
  virtual void scatter_rows(View y, View x, View rows) = 0;

  // ---- cross-entropy of rows: logits [N, V], targets i64 [N] below V; loss f32 [N] is log(sum(exp(row))) -
  // row[target], and its gradient softmax(row) - onehot(target) goes to dlogits, which may be unwanted or logits
  // itself. Where a target is negative, both are 0.
  virtual void cross_entropy(View loss, View dlogits, View logits, View targets) = 0;

  // ---- optimizer. One update of all slots by the step's rule. Where the sum of squares is not finite only scalars are
  // changed: kGradNorm is not finite either, and kLossScale or kHalted follow.
  virtual void optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalars) = 0;

  // ---- replay. Records the kernels that `work` enqueues instead of running them; null where a backend cannot, and
  // then `work` was not called. The addresses that it used must be those of the arena or stay alive as long as the
  // Replay.
  virtual std::unique_ptr<Replay> capture(const std::function<void()>&) { return nullptr; }

  // ---- several devices. A new id, which one of them makes and all are given: empty where a backend has no
  // collectives, and an Error where it lacks a library for them.
  virtual std::string collective_id(CollectiveUse) { return {}; }
  // Returns once all `count` members have called it, each with a rank of its own below `count`; null where a backend
  // has no collectives. Until then `check_others` is called now and then, and its throwing ends the wait.
  virtual std::unique_ptr<Collective> join_collective(const std::string& /*id*/, int /*rank*/, int /*count*/,
                                                      const std::function<void()>& /*check_others*/) {
    return nullptr;
  }

  // ==== The second tier: ComposedBackend makes these of calls of the first.

  virtual void affine(View y, View x, float scale, float shift) = 0;     // y = scale * x + shift; y may be x
  virtual void accumulate(View y, View x, float scale) = 0;              // y += scale * x; the same shape
  virtual void copy_many(const std::vector<Copied>& all, bool add) = 0;  // y = x, or y += x, of each
  virtual void softmax(View y, View x) = 0;                              // over the last axis
  virtual void softmax_backward(View dx, View dy, View y) = 0;
  // mean((a - b)^2) into one f32; da = dloss * 2 (a - b) / numel
  virtual void mse(View loss, View a, View b) = 0;
  virtual void mse_backward(View da, View dloss, View a, View b) = 0;
  virtual void upsample_nearest(View y, View x) = 0;  // by the integer factors that the shapes give
  virtual void upsample_nearest_backward(View dx, View dy) = 0;

  // ---- gated activations: x [..., 2D] to y [..., D]. geglu: value and gate, y = value * gelu(gate), gelu with erf.
  // swiglu: gate and value, as fused gate and up projections of Llamas have them, y = silu(gate) * value. dx may be x.
  virtual void geglu(View y, View x) = 0;
  virtual void geglu_backward(View dx, View dy, View x) = 0;
  virtual void swiglu(View y, View x) = 0;
  virtual void swiglu_backward(View dx, View dy, View x) = 0;
  // y [..., N/2] = swiglu of linear(), or of lora_linear() if `lora` has a down; for inference, which does not keep the
  // product.
  virtual void gated_linear(View y, View x, View w, View bias, const LoraFactors& lora = {}) = 0;

  // ---- transformers of diffusion models: gate [B, D] is one row for all of h[b], h [B, ..., D]
  virtual void gated_add(View y, View x, View gate, View h) = 0;  // y = x + gate * h; y may be x
  // The same into norm.x, which is none of the inputs, and then layer_norm(norm): rows are normed while at hand.
  virtual void gated_add_norm(const GatedSum& sum, const NormArgs& norm) = 0;
  // dh = gate * dy and dgate = the sum of h * dy over each entry's rows; either may be unwanted, and h without dgate.
  virtual void gated_add_backward(View dh, View dgate, View dy, View gate, View h) = 0;
  virtual void qk_norm_rope(const QkNormRopeArgs& a) = 0;
  virtual void qk_norm_rope_backward(const QkNormRopeArgs& a, const QkNormRopeGradients& g) = 0;

  // ---- LoRA
  virtual void lora_linear(const LoraArgs& a) = 0;
  // ds_g = scale_g * dy_g up_g; dup_g = scale_g * dy_g^T s_g; ddown = ds^T dropout(x);
  // dx = dy w + dropout(ds down), with x's mask; without w only the second, added to dx as it is.
  virtual void lora_linear_backward(const LoraArgs& a, const LoraGradients& g) = 0;
  // The adapter's gradients alone (no dx), from x and the factors: as above with s computed here.
  virtual void lora_backward(const LoraArgs& a, const LoraGradients& g) = 0;

  virtual void rope_into_cache(const RopeIntoCacheArgs& a) = 0;
};

// The CPU backend: always there, computes on host_memory().
Backend& cpu_backend();

}  // namespace wick
