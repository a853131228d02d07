// Prodigy (Mishchenko & Defazio, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", 2023) as prodigyopt
// computes it: AdamW on gradients times d, where d is a lower bound of the distance from the first parameters to the
// solution, found from all gradients so far. So a step takes two passes: over gradients, parameters, first values and s
// for the estimate, and the update.
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/optimizer/step.cuh"

namespace wick {
namespace {

struct Prodigy {
  static constexpr int kStates = 2;  // m, v; the first pass has s and the first value
  float coupled_decay, beta1, m_share, beta2, v_share, decay, rate, eps;
  float beta3, s_share;
  float d0, d_coef, growth_rate;
  bool limits_growth, is_active;

  // Of a step that changes nothing.
  __device__ void keep() {
    beta1 = beta2 = beta3 = decay = eps = 1;
    coupled_decay = m_share = v_share = s_share = rate = 0;
    is_active = false;
  }
  __device__ void begin(const OptimizerRule& rule, const float* scalars) {
    if (!(scalars[kLr] > 0)) return keep();
    const ProdigyRule& own = rule.prodigy;
    const double b1 = rule.beta1, b2 = rule.beta2, d = scalars[kProdigyD], t = double(scalars[kProdigyUpdates]) + 1;
    const double lr = scalars[kLr];
    const double step = own.use_bias_correction ? d * lr * sqrt(1 - pow(b2, t)) / (1 - pow(b1, t)) : d * lr;
    coupled_decay = own.decouple ? 0 : rule.weight_decay;
    beta1 = rule.beta1;
    m_share = float(d * (1 - b1));
    beta2 = rule.beta2;
    v_share = float(d * d * (1 - b2));
    decay = own.decouple ? float(1 - step * double(rule.weight_decay)) : 1;
    rate = float(step);
    eps = rule.eps;  // times the new d, once that is known
    beta3 = own.beta3 < 0 ? float(sqrt(b2)) : own.beta3;
    s_share = float(d / double(own.d0) * (own.safeguard_warmup ? d : step));
    d0 = own.d0;
    d_coef = own.d_coef;
    growth_rate = own.growth_rate;
    limits_growth = growth_rate < INFINITY;
    is_active = true;
  }
  // From the sums over all slots of gradient times (first value - parameter), and of the magnitudes of s.
  __device__ void estimate(float* scalars, double towards_first, double magnitudes) {
    if (!is_active) return;
    if (magnitudes == 0) return keep();  // there was no gradient yet
    const double d = scalars[kProdigyD];
    const double numerator =
        double(beta3) * double(scalars[kProdigyNumerator]) + d / double(d0) * double(rate) * towards_first;
    scalars[kProdigyNumerator] = float(numerator);
    follow(float(double(d_coef) * numerator / magnitudes), scalars);
    scalars[kProdigyUpdates] += 1;
    eps *= scalars[kProdigyD];
  }
  // The estimate d after one more of it.
  __device__ void follow(float estimate, float* scalars) const {
    float d = scalars[kProdigyD];
    if (!limits_growth) {
      scalars[kProdigyD] = fmaxf(d, estimate);
      return;
    }
    const float largest = scalars[kProdigyLargestD] = fmaxf(scalars[kProdigyLargestD], estimate);
    if (d == d0) d = fmaxf(d, estimate);
    scalars[kProdigyD] = fminf(largest, d * growth_rate);
  }
  __device__ __forceinline__ Prodigy at(float) const { return *this; }
  __device__ __forceinline__ void update(float g, float& param, float (&state)[kStates]) const {
    float &m = state[0], &v = state[1];
    g = fmaf(param, coupled_decay, g);
    m = fmaf(g, m_share, m * beta1);
    v = fmaf(g * g, v_share, v * beta2);
    param = param * decay - m * rate / (sqrtf(v) + eps);
  }
};

struct DistanceSlot {
  const float *param, *grad, *first;
  float* s;
  int64_t numel;
};
struct DistanceSums {
  double towards_first, magnitudes;
};

__global__ void __launch_bounds__(kOptimizerThreads)
    sum_distance(DistanceSums* partial, const Factors<Prodigy>* factors, int64_t slice_p,
                 const __grid_constant__ SlotTable<DistanceSlot> table) {
  const Factors<Prodigy> f = *factors;
  DistanceSums sums{};
  if (f.update) {
    const auto [slot, begin, end] = part_of(table, blockIdx.x);
    for (int64_t i = begin + threadIdx.x; i < end; i += kOptimizerThreads) {
      if (slice_p > 1 && i % slice_p != 0) continue;
      const float param = slot.param[i], g = fmaf(param, f.rule.coupled_decay, slot.grad[i] * f.grad_scale);
      const float s = fmaf(g, f.rule.s_share, slot.s[i] * f.rule.beta3);
      slot.s[i] = s;
      sums.towards_first += double(g) * double(slot.first[i] - param);
      sums.magnitudes += double(fabsf(s));
    }
  }
  sums.towards_first = block_sum(sums.towards_first);
  __syncthreads();  // block_sum's memory is used again
  sums.magnitudes = block_sum(sums.magnitudes);
  if (threadIdx.x == 0) partial[blockIdx.x] = sums;
}

// Runs in one block.
__global__ void __launch_bounds__(1024)
    estimate_distance(Factors<Prodigy>* factors, float* scalars, const DistanceSums* partial, int64_t count) {
  DistanceSums sums{};
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    sums.towards_first += partial[i].towards_first;
    sums.magnitudes += partial[i].magnitudes;
  }
  sums.towards_first = block_sum(sums.towards_first);
  __syncthreads();
  sums.magnitudes = block_sum(sums.magnitudes);
  if (threadIdx.x == 0 && factors->update) factors->rule.estimate(scalars, sums.towards_first, sums.magnitudes);
}

void find_distance(const RuleStep& step, Factors<Prodigy>* factors) {
  std::vector<DistanceSlot> slots;
  int64_t blocks = 0;
  for (const OptimizerSlot& slot : step.slots) {
    slots.push_back({slot.param.as<const float>(), slot.grad.as<const float>(), slot.states[3].as<const float>(),
                     slot.states[2].as<float>(), slot.param.numel()});
    blocks += blocks_of(slots.back());
  }
  const Scratch partial(step.cuda, size_t(blocks) * sizeof(DistanceSums));
  DistanceSums* to = partial.as<DistanceSums>();
  in_tables(slots, [&](const SlotTable<DistanceSlot>& table) {
    launch("optimizer_step", step.cuda.stream(), {table.blocks, kOptimizerThreads}, sum_distance, to, factors,
           step.step.rule.prodigy.slice_p, table);
    to += table.blocks;
  });
  launch("optimizer_step", step.cuda.stream(), {1, 1024}, estimate_distance, factors, step.scalars,
         partial.as<DistanceSums>(), blocks);
}

}  // namespace

void on_device::prodigy(const RuleStep& step) {
  const FactorsOfStep<Prodigy> factors(step);
  find_distance(step, factors.get());
  update_elements<Prodigy>(step, factors);
}

}  // namespace wick
