// Floats quantised to the k types, to the bits of core/blocks.cpp. Compiled without contraction to fused multiply-adds.
#include "wick/core/k_blocks.h"

#include "wick/backend/cuda/linear/blocks.h"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

// A group a thread; x is dense.
template <class Block>
__global__ void __launch_bounds__(kThreads)
    encode_groups(Block* y, int64_t y_row, const float* x, const Divisor row_blocks, uint32_t blocks) {
  using T = k_blocks::Type<Block>;
  constexpr int kBlocks = kThreads / T::kGroups;
  __shared__ k_blocks::Fits<Block> fits[kBlocks];
  __shared__ k_blocks::Codes<Block> codes[kBlocks];
  const int here = int(threadIdx.x) / T::kGroups, group = int(threadIdx.x) % T::kGroups;
  const uint32_t block = blockIdx.x * kBlocks + here;
  const bool exists = block < blocks;

  k_blocks::Groups<float, T::kLength> g{};
  if (exists) k_blocks::load(g, x + int64_t(block) * Block::kElements + group * T::kLength);
  const k_blocks::Fit<float> fit = k_blocks::fit<Block>(g);
  fits[here].scale[group] = fit.scale;
  fits[here].minimum[group] = fit.minimum;
  fits[here].weights[group] = g.weights;
  __syncthreads();

  Block made{};
  const bool finite = k_blocks::set_units(made, fits[here]);
  k_blocks::choose_codes(codes[here], group, g, fit, made);
  __syncthreads();

  if (!exists || group != 0) return;
  if (finite) k_blocks::pack(made, codes[here]);
  const uint32_t row = row_blocks.divide(block);
  y[row * y_row + (block - row * row_blocks.divisor)] = made;
}

template <class Block>
void encode(CudaBackend& cuda, const View& y, int64_t cols, int64_t stride, const float* x) {
  const auto blocks = uint32_t(y.numel() / Block::kElements);
  launch("encode_k_blocks", cuda.stream(),
         {dim3(blocks_for(blocks, kThreads / k_blocks::Type<Block>::kGroups)), dim3(kThreads)}, encode_groups<Block>,
         y.as<Block>(), stride / Block::kElements, x, Divisor(cols / Block::kElements), blocks);
}

}  // namespace

void encode_k_blocks(CudaBackend& cuda, const View& y, int64_t cols, int64_t stride, const float* x) {
  if (y.dtype == DType::q4_k)
    encode<Q4KBlock>(cuda, y, cols, stride, x);
  else if (y.dtype == DType::q5_k)
    encode<Q5KBlock>(cuda, y, cols, stride, x);
  else
    encode<Q6KBlock>(cuda, y, cols, stride, x);
}

}  // namespace wick
