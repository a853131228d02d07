// Compiled without contraction to fused multiply-adds, since the encoders' bits are those of rounded products.
#include "wick/core/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "wick/core/k_blocks.h"

namespace wick {
namespace {

float element(const Q8Block& b, int i) { return f16_to_f32(b.d) * float(b.q[i]); }

float element(const Q4Block& b, int i) {
  return f16_to_f32(b.d) * float((i < 16 ? b.q[i] & 15 : b.q[i - 16] >> 4) - 8);
}

// Element i's four bits in q4_k, and in q5_k without the fifth.
int four_bits(const uint8_t* q, int i) { return q[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15; }

template <class Block>
float scaled(const Block& b, int i, int n) {
  const int g = i / 32;
  return f16_to_f32(b.d) * float(b.groups.scale(g)) * float(n) - f16_to_f32(b.dmin) * float(b.groups.minimum(g));
}

float element(const Q4KBlock& b, int i) { return scaled(b, i, four_bits(b.q, i)); }
float element(const Q5KBlock& b, int i) {
  return scaled(b, i, four_bits(b.q, i) | (b.high[i % 32] >> i / 32 & 1) << 4);
}

float element(const Q6KBlock& b, int i) {
  const int half = i / 128, g = i / 32 % 4;
  const int low = b.low[half * 64 + g % 2 * 32 + i % 32] >> g / 2 * 4 & 15;
  const int high = b.high[half * 32 + i % 32] >> 2 * g & 3;
  return f16_to_f32(b.d) * float(b.scale[i / 16]) * float((low | high << 4) - 32);
}

void encode(Q8Block& b, const float* x) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
  const float d = largest / 127, inverse = d != 0 ? 1 / d : 0;
  b.d = f32_to_f16(d);
  for (int i = 0; i < 32; ++i) {
    const float scaled = std::clamp(x[i] * inverse, -127.0f, 127.0f), magnitude = std::abs(scaled);
    if (std::isnan(scaled)) {
      b.q[i] = 0;
      continue;
    }
    const int whole = int(magnitude), rounded = whole + (magnitude - float(whole) >= 0.5f);  // halves away from zero
    b.q[i] = int8_t(scaled < 0 ? -rounded : rounded);
  }
}

void encode(Q4Block& b, const float* x) {
  float largest = 0, magnitude = 0;  // with its sign; the first of equals
  for (int i = 0; i < 32; ++i)
    if (std::abs(x[i]) > magnitude) magnitude = std::abs(largest = x[i]);
  const float d = largest / -8, inverse = d != 0 ? 1 / d : 0;
  b.d = f32_to_f16(d);
  const auto number = [&](int i) {
    const float scaled = x[i] * inverse + 8.5f;
    return scaled > 0 ? uint8_t(std::min(scaled, 15.0f)) : uint8_t(0);  // NaN too
  };
  for (int i = 0; i < 16; ++i) b.q[i] = uint8_t(number(i) | number(i + 16) << 4);
}

using Four = float __attribute__((vector_size(16)));  // as every x86-64 and AArch64 has them

template <class Block>
void encode(Block& b, const float* x) {
  using T = k_blocks::Type<Block>;
  constexpr int kLanes = 4, kVectors = T::kGroups / kLanes;
  k_blocks::Groups<Four, T::kLength> groups[kVectors];
  k_blocks::Fit<Four> fits[kVectors];
  k_blocks::Fits<Block> all;
  for (int v = 0; v < kVectors; ++v) {
    k_blocks::load(groups[v], x + v * kLanes * T::kLength);
    fits[v] = k_blocks::fit<Block>(groups[v]);
    std::memcpy(all.scale + v * kLanes, &fits[v].scale, sizeof(Four));
    std::memcpy(all.minimum + v * kLanes, &fits[v].minimum, sizeof(Four));
    std::memcpy(all.weights + v * kLanes, &groups[v].weights, sizeof(Four));
  }
  b = {};
  if (!k_blocks::set_units(b, all)) return;
  k_blocks::Codes<Block> codes;
  for (int v = 0; v < kVectors; ++v) k_blocks::choose_codes(codes, v * kLanes, groups[v], fits[v], b);
  k_blocks::pack(b, codes);
}

template <class Block>
void encode_all(void* blocks, const float* x, int64_t n) {
  for (int64_t i = 0; i < n / Block::kElements; ++i) encode(static_cast<Block*>(blocks)[i], x + i * Block::kElements);
}

}  // namespace

float block_element(const void* blocks, DType dtype, int64_t i) {
  float value = 0;
  for_block_type(dtype, [&]<class Block>(Block*) {
    value = element(static_cast<const Block*>(blocks)[i / Block::kElements], int(i % Block::kElements));
  });
  return value;
}

void quantize_blocks(void* blocks, DType dtype, const float* x, int64_t n) {
  bytes_of(dtype, n);  // whole blocks
  for_block_type(dtype, [&]<class Block>(Block*) { encode_all<Block>(blocks, x, n); });
}

}  // namespace wick
