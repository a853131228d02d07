#include "wick/io/gguf_blocks.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace wick {
namespace {

// Scales are f16. Blocks of 32 have their numbers' low four bits in 16 bytes: those of the first half in the low
// halves.
int low_bits(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
int fifth_bit(const uint8_t (&high)[4], int i) { return (high[i / 8] >> i % 8 & 1) << 4; }

struct Q4_1 {  // d * n(i) + m
  static constexpr int kElements = 32;
  uint16_t d, m;
  uint8_t q[16];
  float operator[](int i) const { return f16_to_f32(d) * float(low_bits(q, i)) + f16_to_f32(m); }
};

struct Q5_0 {  // d * (n(i) - 16)
  static constexpr int kElements = 32;
  uint16_t d;
  uint8_t high[4], q[16];
  float operator[](int i) const { return f16_to_f32(d) * float((low_bits(q, i) | fifth_bit(high, i)) - 16); }
};

struct Q5_1 {  // d * n(i) + m
  static constexpr int kElements = 32;
  uint16_t d, m;
  uint8_t high[4], q[16];
  float operator[](int i) const { return f16_to_f32(d) * float(low_bits(q, i) | fifth_bit(high, i)) + f16_to_f32(m); }
};

// Element i's two bits in q2_k and q3_k: 32 bytes for 128 elements, in four groups of 32.
int two_bits(const uint8_t* q, int i) { return q[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3; }

struct Q2K {  // d * scale * n(i) - dmin * minimum, each of four bits, for groups of 16
  static constexpr int kElements = 256;
  uint8_t groups[16], q[64];
  uint16_t d, dmin;
  float operator[](int i) const {
    const uint8_t group = groups[i / 16];
    return f16_to_f32(d) * float(group & 15) * float(two_bits(q, i)) - f16_to_f32(dmin) * float(group >> 4);
  }
};

struct Q3K {  // d * (scale(i / 16) - 32) * (n(i) - 4)
  static constexpr int kElements = 256;
  uint8_t high[32], q[64];  // the third bit of n(i) is bit i / 32 of byte i % 32
  // Sixteen scales of six bits: the low four of g and g + 8 share byte g, the top two of g, g + 4, g + 8 and g + 12
  // byte 8 + g.
  uint8_t scales[12];
  uint16_t d;
  int scale(int g) const { return (scales[g % 8] >> g / 8 * 4 & 15) | (scales[8 + g % 4] >> g / 4 * 2 & 3) << 4; }
  float operator[](int i) const {
    const int n = two_bits(q, i) | (high[i % 32] >> i / 32 & 1) << 2;
    return f16_to_f32(d) * float(scale(i / 16) - 32) * float(n - 4);
  }
};

constexpr int8_t kNonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct IQ4NL {  // d * kNonlinear[n(i)]
  static constexpr int kElements = 32;
  uint16_t d;
  uint8_t q[16];
  float operator[](int i) const { return f16_to_f32(d) * float(kNonlinear[low_bits(q, i)]); }
};

struct IQ4XS {  // d * (scale(i / 32) - 32) * kNonlinear[n(i)]
  static constexpr int kElements = 256;
  uint16_t d;
  uint8_t scale_high[2], scale_low[4], q[128];
  int scale(int g) const { return (scale_low[g / 2] >> g % 2 * 4 & 15) | (scale_high[g / 4] >> g % 4 * 2 & 3) << 4; }
  float operator[](int i) const {
    return f16_to_f32(d) * float(scale(i / 32) - 32) * float(kNonlinear[low_bits(q + i / 32 * 16, i % 32)]);
  }
};

constexpr int8_t kMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the E2M1 numbers

struct MXFP4 {  // 2^(e - 128) * kMxfp4[n(i)]
  static constexpr int kElements = 32;
  uint8_t e, q[16];
  float operator[](int i) const { return std::ldexp(float(kMxfp4[low_bits(q, i)]), int(e) - 128); }
};

struct TQ1_0 {  // d * (n(i) - 1), n of three values: five of them are the digits of a byte's fraction in base 3
  static constexpr int kElements = 256;
  uint8_t q[48], last[4];
  uint16_t d;
  // `at` of a run of bytes with `step` elements for each digit.
  static int digit(const uint8_t* bytes, int step, int at) {
    static constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
    return uint8_t(bytes[at % step] * kPowers[at / step]) * 3 >> 8;
  }
  int number(int i) const {
    if (i < 160) return digit(q, 32, i);
    return i < 240 ? digit(q + 32, 16, i - 160) : digit(last, 4, i - 240);
  }
  float operator[](int i) const { return f16_to_f32(d) * float(number(i) - 1); }
};

struct TQ2_0 {  // d * (n(i) - 1)
  static constexpr int kElements = 256;
  uint8_t q[64];
  uint16_t d;
  float operator[](int i) const { return f16_to_f32(d) * float(two_bits(q, i) - 1); }
};

template <class T>
struct Plain {
  static constexpr int kElements = 1;
  T value;
  float operator[](int) const { return float(value); }
};

template <class Block>
void decode(const std::byte* blocks, float* to, int64_t count) {
  for (int64_t b = 0; b < count; ++b, to += Block::kElements) {
    Block block;
    std::memcpy(&block, blocks + size_t(b) * sizeof block, sizeof block);
    for (int i = 0; i < Block::kElements; ++i) to[i] = block[i];
  }
}

template <class Block>
constexpr GgufBlocks kBlocks{{Block::kElements, sizeof(Block)}, decode<Block>};

constexpr std::pair<std::string_view, GgufBlocks> kTypes[] = {
    {"Q4_1", kBlocks<Q4_1>},         {"Q5_0", kBlocks<Q5_0>},         {"Q5_1", kBlocks<Q5_1>},
    {"Q2_K", kBlocks<Q2K>},          {"Q3_K", kBlocks<Q3K>},          {"IQ4_NL", kBlocks<IQ4NL>},
    {"IQ4_XS", kBlocks<IQ4XS>},      {"MXFP4", kBlocks<MXFP4>},       {"TQ1_0", kBlocks<TQ1_0>},
    {"TQ2_0", kBlocks<TQ2_0>},       {"F64", kBlocks<Plain<double>>}, {"I8", kBlocks<Plain<int8_t>>},
    {"I16", kBlocks<Plain<int16_t>>}};

}  // namespace

const GgufBlocks* gguf_blocks(std::string_view type) {
  for (const auto& [name, blocks] : kTypes)
    if (name == type) return &blocks;
  return nullptr;
}

}  // namespace wick
