// Which kernels a linear layer runs, without a LoRA and with one (docs/kernels/decode.md, lora_linear.md): functions of
// the device and of how its matrices lie. Of addresses only their alignment counts, and nothing is read.
#pragma once

#include <string>

#include "wick/backend/cuda/linear/extended_gemm.h"
#include "wick/backend/cuda/linear/few_rows.h"

namespace wick {

enum class LinearWay {
  few_rows,  // few_rows.cu: up to 8 rows of x, or 32 over a quantised weight; SwiGLU and a LoRA in the same sum
  extended,  // gemm_sm90.cu: gate and up with SwiGLU
  cublaslt,  // SwiGLU, if any, is a pass of its own
  sliced,    // cuBLASLt over slices of a weight in blocks that blocks.cu decodes; SwiGLU likewise
  decoded,   // the weight is in rows of codes, which row_formats.cu decodes, and the call is planned again
};
inline constexpr std::string_view kLinearWays[] = {"few_rows", "extended", "cublaslt", "sliced", "decoded"};
inline std::string_view to_string(LinearWay way) { return kLinearWays[size_t(way)]; }

// WICK_CUDA_WAY=linear:WAY takes that way wherever it can go. Without a LoRA.
LinearWay plan_linear(const Gpu& gpu, const LinearCall& l);
std::string to_string(const LinearCall& l);  // "linear 1 x 4096 -> 14336, swiglu, q4_0"

enum class LoraWay {
  few_rows,   // few_rows.cu, behind a launch that makes s
  wgmma,      // the extended product on 9.0 (gemm_sm90.cu)
  mma,        // and from 8.0 on (gemm_sm80.cu)
  composed,   // a linear, and cuBLASLt's product of s and up for each block, behind s
  in_blocks,  // the weight is in blocks or rows of codes, which are decoded, and the call is planned again
  adapter,    // lora_few_rows.cu: without a weight, all in one launch, on 9.0
};
inline constexpr std::string_view kLoraWays[] = {"few_rows", "wgmma", "mma", "composed", "in_blocks", "adapter"};

// The kernel that computes s (forward) or ds (backward).
enum class LowWay {
  product,     // the extended product itself (GemmPlan::slice)
  projection,  // lora_factors.cu, in a launch before it
  pass,        // lora_pass_sm90.cu, with the gradients of the ups
  cublaslt,
};
enum class GradientsWay {
  none,
  one_launch,  // lora_few_rows.cu makes s, ds and both gradients
  kernel,      // lora_factors.cu
  pass,        // lora_pass_sm90.cu
  cublaslt,
};

struct LoraPlan {  // of a forward pass
  LoraWay way;
  LowWay low = LowWay::cublaslt;
  bool is_fused = false;  // wgmma, mma or composed, by extended_gemm()
  ProductPlan product = {};
};
struct LoraBackwardPlan {
  bool is_fused = false;  // by the kernels below; else by cuBLASLt's products, one after the other
  LowWay ds = LowWay::cublaslt;
  ProductPlan dx = {};
  GradientsWay gradients = GradientsWay::cublaslt;
};
// WICK_CUDA_WAY=lora:WAY takes that way forward and for dx wherever it can go.
LoraPlan plan_lora(const Gpu& gpu, const LoraArgs& a);
LoraBackwardPlan plan_lora_backward(const Gpu& gpu, const LoraArgs& a, const LoraGradients& g);
GradientsWay plan_lora_gradients(const Gpu& gpu, const LoraArgs& a, const LoraGradients& g);  // of the adapter alone
std::string_view to_string(GradientsWay way);
std::string to_string(const LoraPlan& plan);
std::string to_string(const LoraBackwardPlan& plan);

// The inputs of the plans, shared with the code that carries them out.

bool any_wanted(const std::vector<View>& views);
// A rank whose rows of 16-bit elements are 16-byte aligned.
constexpr int64_t padded(int64_t rank) { return (rank + 7) / 8 * 8; }

// A factor as a kernel reads it: where it lies if dtype and alignment are right, else as its copy will, with rows
// padded to 16 bytes, at an address that is aligned and not to be read.
DeviceMatrix factor_layout(const View& factor, DType dtype);
bool lies_ready(const View& factor, DType dtype);
// The dtype in which the thin kernels read both factors: f32 where both lie ready in it, else the activations'.
DType factors_dtype(const View& down, const View& up, DType activations);

// y as an extended product without low and s, and dx; none where the kernels cannot read something.
std::optional<ExtendedGemm> forward_product(const Gpu& gpu, const LoraArgs& a);
std::optional<ExtendedGemm> backward_product(const Gpu& gpu, const LoraArgs& a, const LoraGradients& g);

// The call of a few rows, with the factors as they lie or as their copies will; none where the kernels do not take it
// or another way is forced.
std::optional<LinearCall> few_rows_call(const Gpu& gpu, const LoraArgs& a, LoraFactors& factors, bool gated = false);

}  // namespace wick
