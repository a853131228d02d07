#include "wick/pipelines/text_generation.h"

#include <gtest/gtest.h>

#include "device.h"
#include "io/files.h"
#include "source_dir.h"

namespace wick {
namespace {

const std::filesystem::path kGolden = test::source_dir() / "tests/golden/llama";

// Tokens as text: the letters a to z by id, and from 26 on two letters at once.
TextStream letters() {
  return {[](int64_t id) {
            const char c = char('a' + id % 26);
            return id < 26 ? std::string(1, c) : std::string{c, c};
          },
          [] { return std::string(); }};
}

std::string text_of(const std::vector<int64_t>& ids) {
  std::string text;
  for (const int64_t id : ids) text += letters().push(id);
  return text;
}

Llama loaded(const std::string& family) { return Llama::load(kGolden / family, {.backend = &test::backend()}); }

// The likeliest next token, from the whole text at once.
int64_t likeliest(const Llama& model, const std::vector<int64_t>& ids) {
  const int64_t tokens = int64_t(ids.size());
  const Tensor hidden =
      model(Tensor::of(ids, {1, tokens}), TokenPlan::dense(1, tokens, model.config(), test::memory()));
  const std::vector<float> logits = model.logits(slice(hidden, 1, tokens - 1, tokens)).to_vector();
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

class TextGeneration : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Families, TextGeneration, testing::Values("mistral", "llama3", "qwen2"),
                         [](const auto& i) { return i.param; });

TextRequest greedy(std::vector<int64_t> prompt, int64_t tokens) {
  TextRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.sampling.temperature = 0;
  return request;
}

TEST_P(TextGeneration, GreedyIsWhatTheWholeTextGives) {
  const Llama model = loaded(GetParam());
  Generator generator(model, 64);
  std::vector<int64_t> text = {5, 90, 17, 3};
  const TextAnswer answer = generator(greedy(text, 30), letters());
  ASSERT_EQ(answer.ids.size(), 30u);
  for (const int64_t id : answer.ids) {
    EXPECT_EQ(id, likeliest(model, text));
    text.push_back(id);
  }
  EXPECT_EQ(answer.text, text_of(answer.ids));
  EXPECT_EQ(answer.finish, Finish::max_tokens);
  EXPECT_EQ(answer.reused, 0);

  // The text goes on from its end, and back.
  const TextAnswer more = generator(greedy(text, 5), letters());
  EXPECT_EQ(more.reused, 33);
  EXPECT_EQ(more.ids, Generator(model, 64)(greedy(text, 5), letters()).ids);
  const TextAnswer other = generator(greedy({5, 90, 4}, 5), letters());
  EXPECT_EQ(other.reused, 2);
  EXPECT_EQ(other.ids, Generator(model, 64)(greedy({5, 90, 4}, 5), letters()).ids);
  EXPECT_EQ(generator(greedy({5, 90, 4}, 5), letters()).ids, other.ids);
}

TEST_P(TextGeneration, StopsAtTextAndAtIds) {
  const Llama model = loaded(GetParam());
  Generator generator(model, 64);
  TextRequest request = greedy({9, 8, 7}, 20);
  const TextAnswer all = generator(request, letters());
  request.stops = {"nowhere to be found", all.text.substr(6, 5)};
  std::string streamed;
  const TextAnswer cut = generator(request, letters(), [&](std::string_view piece) {
    streamed += piece;
    return true;
  });
  EXPECT_EQ(cut.finish, Finish::stop_text);
  EXPECT_EQ(cut.text, all.text.substr(0, all.text.find(request.stops[1])));
  EXPECT_EQ(streamed, cut.text);

  request.stops.clear();
  request.stop_ids = {1000, all.ids[5]};
  const TextAnswer ended = generator(request, letters());
  EXPECT_EQ(ended.finish, Finish::stop_id);
  EXPECT_EQ(ended.ids, std::vector<int64_t>(all.ids.begin(), std::find(all.ids.begin(), all.ids.end(), all.ids[5])));

  int pieces = 0;
  const TextAnswer cancelled =
      generator(greedy({9, 8, 7}, 20), letters(), [&](std::string_view) { return ++pieces < 3; });
  EXPECT_EQ(cancelled.finish, Finish::caller);
  EXPECT_EQ(cancelled.ids.size(), 3u);
}

TEST(Generator, AFullContextIsAnErrorOrAChoice) {
  const Llama model = loaded("mistral");
  Generator generator(model, 10);
  expect_error([&] { generator(greedy({1, 2, 3, 4}, 7), letters()); }, {"4 tokens", "7 more", "10"});
  EXPECT_EQ(generator(greedy({1, 2, 3, 4}, 6), letters()).ids.size(), 6u);
  TextRequest request = greedy({1, 2, 3, 4}, 50);
  request.until_full = true;
  const TextAnswer answer = generator(request, letters());
  EXPECT_EQ(answer.finish, Finish::full_context);
  EXPECT_EQ(answer.ids.size(), 7u);  // the last one is drawn from a full context
  request.prompt.assign(10, 1);
  expect_error([&] { generator(request, letters()); }, {"10 tokens", "context of 10"});
  expect_error([&] { Generator(model, 129); }, {"1 to 128", "129"});
  expect_error([&] { generator(greedy({}, 1), letters()); }, {"no tokens"});
  expect_error([&] { generator(greedy({97}, 1), letters()); }, {"97"});
}

TEST(Generator, SamplingRepeatsItself) {
  const Llama model = loaded("qwen3");
  const auto drawn = [&](uint64_t seed) {
    TextRequest request = greedy({4, 2}, 25);
    request.sampling = {.temperature = 1.5f, .top_k = 40, .top_p = 0.95f, .min_p = 0.01f, .seed = seed};
    return Generator(model, 32)(request, letters()).ids;
  };
  EXPECT_EQ(drawn(3), drawn(3));
  EXPECT_NE(drawn(3), drawn(4));
}

TEST(StopFilter, AcrossPieces) {
  const auto filtered = [](const std::vector<std::string>& stops, const std::string& text, size_t piece) {
    StopFilter filter(stops);
    std::string out;
    for (size_t i = 0; i < text.size(); i += piece) out += filter.push(text.substr(i, piece));
    return (filter.found() ? "found: " : "") + out + filter.finish();
  };
  for (const size_t piece : {1, 2, 3, 5, 100}) {
    SCOPED_TRACE(piece);
    EXPECT_EQ(filtered({"###"}, "a ## b # c ### d", piece), "found: a ## b # c ");
    EXPECT_EQ(filtered({"aab"}, "aaaaab!", piece), "found: aaa");
    EXPECT_EQ(filtered({"xyz", "yq"}, "wxyxyq", piece), "found: wxyx");
    EXPECT_EQ(filtered({"end"}, "the en", piece), "the en");
    EXPECT_EQ(filtered({"", "no"}, "yes", piece), "yes");
    EXPECT_EQ(filtered({}, "all of it", piece), "all of it");
  }
  StopFilter filter({"stop"});
  EXPECT_EQ(filter.push("go sto"), "go ");  // the possible start of a stop is held back
  EXPECT_EQ(filter.push("ne"), "stone");
}

}  // namespace
}  // namespace wick
