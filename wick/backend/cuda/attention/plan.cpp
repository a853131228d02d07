#include "wick/backend/cuda/attention/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/runtime/ways.h"

namespace wick {
namespace {

constexpr int64_t kShort = 16;  // fewer queries or keys than this are not worth a plan of cuDNN's

// The cases that cuDNN's attention documents; its plan decides in the end.
bool suits_cudnn(const Gpu& gpu, const AttentionShape& s) {
  const int64_t widest = gpu.capability() == 90 ? 256 : 128;
  return gpu.capability() >= 80 && s.dtype != DType::f32 && s.features % 8 == 0 && s.features <= widest &&
         std::min(s.queries, s.keys) >= kShort && s.aligned && !s.is_language();
}

bool suits_tensor_cores(const Gpu& gpu, const AttentionShape& s) {
  return gpu.capability() >= 80 && s.dtype != DType::f32 && s.features % 8 == 0 &&
         s.features <= kAttentionMmaFeatures && s.positive_scale && s.aligned;
}

// Backward keeps five tiles in shared memory, more than Turing has.
bool suits_tiles(const Gpu& gpu, const AttentionShape& s) {
  return s.features <= kAttentionTileFeatures && (!s.backward || gpu.capability() >= 80) && !s.is_language();
}

bool can_go(const Gpu& gpu, const AttentionShape& s, AttentionWay way, bool cudnn) {
  switch (way) {
    case AttentionWay::few:
      return suits_tensor_cores(gpu, s) && s.is_language() && !s.backward && s.queries <= kFewQueries;
    case AttentionWay::wgmma:
      return suits_tensor_cores(gpu, s) && gpu.capability() == 90;
    case AttentionWay::mma:
      return suits_tensor_cores(gpu, s);
    case AttentionWay::cudnn:
      return cudnn && suits_cudnn(gpu, s);
    case AttentionWay::tiles:
      return suits_tiles(gpu, s);
    case AttentionWay::rows:
      return true;
  }
  return false;
}

// Where cuDNN goes before our kernels. Measured on 9.0 (docs/kernels/attention_and_convolution.md): ours are faster
// backward at every shape there, by 1.02 to 3.5 times, and forward where keys are few. Forward of heads wider than 64
// cuDNN is faster by up to 1.15 times; of the others its blocks take 128 queries, and ours 192 in 1.4 times as long, so
// that the rounds decide in which the device takes all blocks.
bool prefers_cudnn(const Gpu& gpu, const AttentionShape& s) {
  if (!suits_tensor_cores(gpu, s)) return true;
  if (gpu.capability() != 90) return gpu.capability() > 90;
  if (s.backward || s.keys <= 128) return false;
  const auto rounds = [&](int64_t queries) {
    return double(ceil_div(s.entries * s.heads * ceil_div(s.queries, queries), gpu.multiprocessors()));
  };
  return s.features > 64 || rounds(192) > 0.72 * rounds(128);
}

// Tiles win where a launch costs more than the arithmetic, and in f32 where there are enough of them: there is no
// tensor core to miss.
bool prefers_tiles(const Gpu& gpu, const AttentionShape& s) {
  const int64_t tiles = ceil_div(std::min(s.queries, s.keys), 64);
  return s.queries * s.keys <= 256 * 256 ||
         (s.dtype == DType::f32 && s.entries * s.heads * tiles >= gpu.multiprocessors());
}

}  // namespace

std::string to_string(const AttentionShape& s) {
  const std::string entries = s.entries > 1 ? fmt::format("{} of ", s.entries) : "";
  const std::string heads = s.heads == s.key_heads ? "" : fmt::format(" over {}", s.key_heads);
  return fmt::format("attention{} {}{} x {}, {}{} heads of {}{}, {}", s.backward ? " backward" : "", entries, s.queries,
                     s.keys, s.heads, heads, s.features, s.ranges ? ", ranges" : "", name_of(s.dtype));
}

AttentionWay plan_attention(const Gpu& gpu, const AttentionShape& s, bool cudnn) {
  const auto can = [&](AttentionWay way) { return can_go(gpu, s, way, cudnn); };
  if (const auto forced = forced_way<AttentionWay>("attention", kAttentionWays); forced && can(*forced)) return *forced;
  if (can(AttentionWay::few)) return AttentionWay::few;
  if (can(AttentionWay::cudnn) && prefers_cudnn(gpu, s)) return AttentionWay::cudnn;
  if (can(AttentionWay::wgmma)) return AttentionWay::wgmma;
  if (can(AttentionWay::mma)) return AttentionWay::mma;
  if (can(AttentionWay::tiles) && prefers_tiles(gpu, s)) return AttentionWay::tiles;
  return AttentionWay::rows;
}

}  // namespace wick
