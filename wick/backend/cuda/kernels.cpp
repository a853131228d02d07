#include "wick/backend/cuda/kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "wick/backend/cuda/attention/plan.h"
#include "wick/backend/cuda/linear/plan.h"

namespace wick {
namespace {

// A stand-in for a tensor: aligned, and never read.
View tensor(const Shape& shape, DType dtype) {
  return contiguous_view(reinterpret_cast<void*>(uintptr_t{1} << 20), dtype, shape);
}

std::string attention(const Gpu& gpu, AttentionShape shape, bool cudnn) {
  const AttentionWay forward = plan_attention(gpu, shape, cudnn);
  const std::string what = to_string(shape);
  shape.backward = true;
  return fmt::format("{}: {}, backward {}", what, to_string(forward), to_string(plan_attention(gpu, shape, cudnn)));
}

std::string linear(const Gpu& gpu, int64_t m, int64_t k, int64_t n, DType weight, bool gated = false) {
  const View x = tensor({m, k}, DType::bf16), y = tensor({m, n}, DType::bf16);
  const LinearCall call{*as_rows(y), *as_rows(x), tensor({gated ? 2 * n : n, k}, weight), {}, {}, gated};
  return fmt::format("{}: {}", to_string(call), to_string(plan_linear(gpu, call)));
}

std::string lora(const Gpu& gpu, int64_t m, int64_t k, int64_t n, int64_t rank, DType weight, bool trains) {
  const DType dtype = DType::bf16;
  const LoraArgs a{.y = tensor({m, n}, dtype),
                   .s = tensor({m, rank}, dtype),
                   .x = tensor({m, k}, dtype),
                   .w = tensor({n, k}, weight),
                   .lora = {tensor({rank, k}, dtype), {{tensor({n, rank}, dtype)}}}};
  const LoraGradients g{
      .dx = a.x, .ddown = tensor({rank, k}, DType::f32), .dups = {tensor({n, rank}, DType::f32)}, .dy = a.y};
  const std::string forward =
      fmt::format("LoRA {} x {} -> {}, rank {}, {}: {}", m, k, n, rank, name_of(weight), to_string(plan_lora(gpu, a)));
  return trains ? fmt::format("{}, backward {}", forward, to_string(plan_lora_backward(gpu, a, g))) : forward;
}

}  // namespace

std::string describe_kernels(const Gpu& gpu, bool cudnn) {
  const auto heads = [](int64_t queries, int64_t keys, int64_t count, int64_t features, DType dtype) {
    return AttentionShape{1, queries, keys, count, count, features, dtype};
  };
  AttentionShape prompt{1, 512, 512, 32, 8, 128, DType::bf16, /*ranges=*/true}, token = prompt;
  token.queries = 1;
  const std::string lines[] = {attention(gpu, heads(4096, 4096, 10, 64, DType::bf16), cudnn),
                               attention(gpu, heads(1024, 77, 20, 64, DType::bf16), cudnn),
                               attention(gpu, heads(1024, 77, 20, 64, DType::f32), cudnn),
                               attention(gpu, prompt, cudnn),
                               attention(gpu, token, cudnn),
                               linear(gpu, 1, 4096, 4096, DType::bf16),
                               linear(gpu, 1, 4096, 4096, DType::q4_0),
                               linear(gpu, 512, 4096, 4096, DType::q4_0),
                               linear(gpu, 512, 4096, 14336, DType::bf16, /*gated=*/true),
                               lora(gpu, 4096, 640, 640, 16, DType::bf16, true),
                               lora(gpu, 2048, 4096, 4096, 16, DType::bf16, true),
                               lora(gpu, 1, 4096, 4096, 16, DType::q4_0, false),
                               fmt::format("convolution 3x3: {}", cudnn ? "cuDNN" : "cuBLASLt over gathered columns")};
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace wick
