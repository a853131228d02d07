// Every 16-bit float there and back, and f32 to 16 bits against the compiler's own conversions.
#include "wick/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace wick {
namespace {

uint16_t reference_f16(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }

bool is_nan_f16(uint16_t bits) { return (bits & 0x7fffu) > 0x7c00u; }

TEST(DType, EveryF16IsExactInF32) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_f32(uint16_t(bits));
    if (is_nan_f16(uint16_t(bits))) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(is_nan_f16(f32_to_f16(value))) << bits;
    } else {
      ASSERT_EQ(value, static_cast<float>(std::bit_cast<_Float16>(uint16_t(bits)))) << bits;
      ASSERT_EQ(f32_to_f16(value), bits);
    }
  }
}

TEST(DType, EveryBf16IsExactInF32) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(uint16_t(bits));
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value)))) << bits;
    else
      ASSERT_EQ(f32_to_bf16(value), bits);
  }
}

// Around each f16: its f32 neighbours and the midpoint to the next, where rounding decides.
TEST(DType, F32RoundsToTheNearestEvenF16) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = f16_to_f32(uint16_t(bits));
    const float high = bits == 0x7bff ? 65536.0f : f16_to_f32(uint16_t(bits + 1));
    const float middle = low + (high - low) / 2;
    for (float value : {std::nextafter(low, high), std::nextafter(middle, low), middle, std::nextafter(middle, high)})
      for (float signed_value : {value, -value})
        ASSERT_EQ(f32_to_f16(signed_value), reference_f16(signed_value)) << signed_value;
  }
  for (float value : {0x1p-25f, 0x1.000002p-25f, 0x1p-26f, 0x1p-149f, 1e38f, INFINITY})
    EXPECT_EQ(f32_to_f16(value), reference_f16(value)) << value;
}

TEST(DType, F32RoundsToTheNearestEvenBf16) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const uint32_t low = bits << 16;
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(low + 0x7fff)), bits);
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(low + 0x8000)), bits + (bits & 1));
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(low + 0x8001)), bits + 1);
    EXPECT_EQ(f32_to_bf16(-std::bit_cast<float>(low + 0x8001)), 0x8000 + bits + 1);
  }
  // A NaN whose payload lies in the low bits only must not become an infinity.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace wick
