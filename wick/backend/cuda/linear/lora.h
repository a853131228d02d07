// The LoRA linear of few rows, for lora_linear() and gated_linear().
#pragma once

#include "wick/backend/backend.h"

namespace wick {

class CudaBackend;

// y [..., N], or [..., N/2] if `gated`, by few_rows.cu. False, and nothing done, where its kernels do not take it.
bool lora_few_rows(CudaBackend& cuda, const LoraArgs& a, bool gated = false);

}  // namespace wick
