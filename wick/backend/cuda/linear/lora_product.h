// The large product of the LoRA linear, by whichever way is the fastest for its shape on this device.
#pragma once

#include "wick/backend/cuda/linear/gemm_sm90.h"

namespace wick {

enum class ProductWay {
  wgmma,     // lora_gemm.h, on 9.0
  mma,       // lora_gemm_mma.h, from 8.0 on
  composed,  // cuBLASLt's product, and another for each group that adds to it
};

// Whether a kernel of ours can take it; then so can all ways that its device has. Groups need not be there yet.
bool lora_product_fits(const Gpu& gpu, const ExtendedGemm& g);
struct ProductPlan {
  ProductWay way;
  GemmPlan gemm;  // for wgmma
  bool makes_low() const { return way == ProductWay::wgmma && gemm.slice > 0; }
};
// By shape and device alone, so that every run of a training goes the same way to the same bits. g.low need not be
// there. For tests and timings WICK_CUDA_LORA = wgmma, mma or composed prefers that one, and mma128x256 and its like
// one tile.
ProductPlan plan_lora_product(const Gpu& gpu, const ExtendedGemm& g);
// Unless the plan makes low, it is written by the launch before this one; everything else was there before that.
void lora_product(CudaBackend& cuda, const ExtendedGemm& g, const ProductPlan& plan);

}  // namespace wick
