#include "wick/pipelines/text_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "device.h"
#include "io/files.h"
#include "source_dir.h"

namespace wick {
namespace {

const std::filesystem::path kGolden = test::source_dir() / "tests/golden/llama";

Llama loaded(const std::string& family, DType dtype) {
  return Llama::load(kGolden / family, {.dtype = dtype, .backend = &test::backend()});
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
}

// The window of mistral is 7 tokens, which the text outgrows.
class Steps : public testing::TestWithParam<std::tuple<std::string, DType>> {};

INSTANTIATE_TEST_SUITE_P(Families, Steps,
                         testing::Combine(testing::Values("mistral", "llama3", "qwen3"),
                                          testing::Values(DType::f32, DType::bf16)),
                         [](const auto& i) {
                           return std::get<0>(i.param) + "_" + std::string(name_of(std::get<1>(i.param)));
                         });

// The first step is computed call by call, later ones are replayed where the device can: all give the bits of a token
// that is read, which is never replayed.
TEST_P(Steps, HaveTheBitsOfCalls) {
  const auto& [family, dtype] = GetParam();
  const Llama model = loaded(family, dtype);
  TextDecoder steps(model, 40), calls(model, 40);
  const std::vector<int64_t> prompt = {5, 90, 17, 3};
  steps.read(prompt);
  calls.read(prompt);
  for (int i = 0; i < 20; ++i) {
    const auto [id, logit] = calls.likeliest().wait();
    const TextDecoder::Likeliest same = steps.likeliest().wait();
    EXPECT_EQ(same.id, id);
    EXPECT_EQ(same.logit, logit);
    const std::vector<float> logits = calls.logits();
    EXPECT_EQ(id, std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(logit, logits[size_t(id)]);
    steps.step();
    calls.read(std::vector<int64_t>{id});
    expect_same_bits(steps.logits(), calls.logits());
  }
  EXPECT_EQ(steps.length(), 24);
}

// Page-locked or staged.
TEST_P(Steps, OfStreamedWeightsHaveTheSameBits) {
  const auto& [family, dtype] = GetParam();
  const auto logits = [&, &family = family, &dtype = dtype](const BlockSchedule& blocks) {
    const Llama model =
        Llama::load(kGolden / family, {.dtype = dtype, .backend = &test::backend(), .block_schedule = blocks});
    TextDecoder decoder(model, 20);
    decoder.read(std::vector<int64_t>{5, 90, 17, 3});
    for (int i = 0; i < 6; ++i) decoder.step();
    return decoder.logits();
  };
  const std::vector<float> resident = logits({});
  for (const bool staged : {false, true})
    expect_same_bits(logits(BlockSchedule().with_streamed(BlockSchedule::kAll, staged)), resident);
}

// Back, on another way, and to the end of the context: a recorded step does not depend on where it was recorded.
TEST_P(Steps, GoBackAndOn) {
  const auto& [family, dtype] = GetParam();
  const Llama model = loaded(family, dtype);
  TextDecoder decoder(model, 20), whole(model, 20);
  for (TextDecoder* one : {&decoder, &whole}) one->read(std::vector<int64_t>{5, 90, 17, 3});
  for (int i = 0; i < 6; ++i) decoder.step();
  for (TextDecoder* one : {&decoder, &whole}) one->truncate(2);
  std::vector<int64_t> text = {5, 90};
  for (const int64_t id : {11, 40, 2, 77, 8, 60, 31, 19, 4, 25, 1, 50, 12, 66, 9, 80, 7, 13}) {
    decoder.put(id);
    decoder.step();
    text.push_back(id);
  }
  for (const int64_t id : std::span(text).subspan(2)) whole.read(std::vector<int64_t>{id});
  expect_same_bits(decoder.logits(), whole.logits());
  expect_error([&] { decoder.step(); }, {"context is full", "20"});
  EXPECT_EQ(decoder.length(), 20);
}

TEST(TextDecoder, IsAheadOfWhoReadsIt) {
  const Llama model = loaded("llama3", DType::f32);
  TextDecoder decoder(model, 30), waiting(model, 30);
  decoder.read(std::vector<int64_t>{4, 2});
  waiting.read(std::vector<int64_t>{4, 2});
  std::vector<TextDecoder::Pending> pending;
  for (int i = 0; i < 12; ++i) {
    pending.push_back(decoder.likeliest());
    decoder.step();
  }
  for (const TextDecoder::Pending& next : pending) {
    EXPECT_EQ(next.wait().id, waiting.likeliest().wait().id);
    waiting.step();
  }
}

}  // namespace
}  // namespace wick
