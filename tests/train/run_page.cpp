// The page of a run as text: what it holds, and that no text or number can break it.
#include "wick/train/run_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace wick {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

std::string data_of(const std::string& html) {
  const std::string begin = "id=\"run\">";
  const size_t at = html.find(begin) + begin.size();
  return html.substr(at, html.find("</script>", at) - at);
}
nlohmann::json parsed(const std::string& html) { return nlohmann::json::parse(data_of(html)); }

size_t count_in(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<StepRecord> records(int64_t count) {
  std::vector<StepRecord> all;
  for (int64_t step = 1; step <= count; ++step)
    all.push_back({.step = step,
                   .loss = 1 + 0.1 * std::sin(double(step)),
                   .lr = 1e-4,
                   .grad_norm = 2,
                   .seconds = 0.5,
                   .time = 1.7e9 + double(step),
                   .part_norms = {{"text encoders", 0.5}, {"middle block", 0.25}}});
  return all;
}

TEST(RunPage, HostileTextsStayTexts) {
  const std::string hostile = "</script><!--<script><img src=x onerror=\"alert(1)\">\\\u2028\u2029'\n";
  const RunPage page{.title = hostile,
                     .steps = 1,
                     .result = hostile,
                     .settings = {{hostile, hostile, hostile}},
                     .facts = {{hostile, hostile}},
                     .commands = {{hostile, hostile}},
                     .previews = {{.prompt = hostile, .file = hostile, .text = hostile + "\xff"}}};
  std::vector<StepRecord> one = records(1);
  one[0].part_norms = {{hostile, 1.0}};
  const std::string html = run_page(page, one), data = data_of(html);
  EXPECT_EQ(data.find('<'), std::string::npos);
  EXPECT_TRUE(std::ranges::all_of(data, [](char c) { return c >= ' ' && c < 127; }));
  EXPECT_EQ(count_in(html, "</script"), count_in(run_page({}, {}), "</script"));
  const auto found = parsed(html);
  for (const auto& text : {found["title"], found["result"], found["settings"][0]["value"], found["facts"][0]["text"],
                           found["commands"][0]["name"], found["previews"][0]["prompt"], found["previews"][0]["text"],
                           found["norms"][1]["name"]})
    EXPECT_EQ(text, hostile);
}

TEST(RunPage, NeedsNothingElse) {
  const std::string html = run_page({}, {});
  for (const char* outside : {"src=\"http", "src=\"//", "@import", "url(http", "innerHTML", "eval(", "<link"})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos) << "and a browser would load nothing";
}

TEST(RunPage, HoldsTheRecords) {
  std::vector<StepRecord> run = records(40);
  run[9].val_loss = 0.75;
  const auto page = parsed(run_page({.title = "fox", .steps = 50}, run));
  EXPECT_EQ(page["title"], "fox");
  EXPECT_EQ(page["step"], 40);
  EXPECT_EQ(page["steps"], 50);
  EXPECT_EQ(page["seconds"], 20);
  EXPECT_EQ(page["loss"][0]["points"].size(), 40u);
  EXPECT_EQ(page["loss"][0]["points"][4], (nlohmann::json{5, 0.904108}));
  EXPECT_NEAR(page["loss"][1]["points"][20][1], (run[19].loss + run[20].loss + run[21].loss) / 3, 1e-5);
  EXPECT_EQ(page["loss"][2]["points"], (nlohmann::json{{10, 0.75}}));
  EXPECT_EQ(page["rate"][0]["points"][0], (nlohmann::json{1, 1e-4}));
  EXPECT_EQ(page["norms"].size(), 3u);
  EXPECT_EQ(page["norms"][0]["points"][0], (nlohmann::json{1, 2.0}));
  EXPECT_EQ(page["norms"][2]["name"], "middle block");
  EXPECT_EQ(page["norms"][2]["points"][39], (nlohmann::json{40, 0.25}));
  EXPECT_EQ(page["means"]["window"], 4);
  EXPECT_NEAR(page["means"]["first"], (run[0].loss + run[1].loss + run[2].loss + run[3].loss) / 4, 1e-5);
  EXPECT_NEAR(page["means"]["last"], (run[36].loss + run[37].loss + run[38].loss + run[39].loss) / 4, 1e-5);
}

TEST(RunPage, ARateThatIsFoundStandsForTheOneThatWasSet) {
  std::vector<StepRecord> run = records(2);
  EXPECT_EQ(parsed(run_page({}, run))["rate"][0]["name"], "learning rate");
  for (StepRecord& r : run) r.found_lr = 3e-3;
  const auto rate = parsed(run_page({}, run))["rate"];
  EXPECT_EQ(rate.size(), 1u);
  EXPECT_EQ(rate[0]["points"], (nlohmann::json{{1, 3e-3}, {2, 3e-3}}));
}

TEST(RunPage, OneStepAndNone) {
  const auto none = parsed(run_page({.steps = 3}, {}));
  EXPECT_EQ(none["step"], 0);
  EXPECT_TRUE(none["loss"][1]["points"].empty());
  EXPECT_EQ(none["means"]["window"], 0);
  const auto one = parsed(run_page({.steps = 3}, records(1)));
  EXPECT_EQ(one["loss"][1]["points"], one["loss"][0]["points"]);
  EXPECT_EQ(one["loss"][0]["points"].size(), 1u);
  EXPECT_TRUE(one["previews"].empty());
}

TEST(RunPage, NumbersAreFinite) {
  std::vector<StepRecord> run = records(5);
  run[1] = {.step = 2, .loss = kNan, .lr = kInfinity, .grad_norm = -kInfinity, .seconds = kNan, .time = kNan};
  run[2].val_loss = kInfinity;
  run[3].part_norms = {{"middle block", kNan}};
  run[4].time = kInfinity;
  const std::string html = run_page({.steps = 5}, run);
  const auto page = parsed(html);
  EXPECT_EQ(data_of(html).find("null"), std::string::npos);
  EXPECT_EQ(page["loss"][0]["points"].size(), 4u);
  EXPECT_EQ(page["loss"][1]["points"].size(), 4u);
  EXPECT_TRUE(page["loss"][2]["points"].empty());
  EXPECT_EQ(page["norms"][2]["points"].size(), 3u);
  EXPECT_EQ(page["time"], 0);
  EXPECT_EQ(page["seconds"], 2);
}

TEST(RunPage, LongRunsStaySmall) {
  std::vector<StepRecord> run = records(100000);
  for (StepRecord& r : run) r.part_norms = {{"a", 1.23456789}, {"b", 1e-5 / 3}, {"c", 2.0 / 3}, {"d", 1e-9 / 7}};
  run[54321].loss = 77;
  run[65432].loss = -7;
  const std::string html = run_page({.steps = 100000}, run);
  EXPECT_LT(html.size(), 1000000u);
  const auto losses = parsed(html)["loss"][0]["points"];
  EXPECT_LE(losses.size(), 2000u);
  EXPECT_GT(losses.size(), 1900u);
  EXPECT_EQ(std::ranges::count(losses, nlohmann::json{54322, 77}), 1);
  EXPECT_EQ(std::ranges::count(losses, nlohmann::json{65433, -7}), 1);
}

TEST(RunPage, ThinnedCurvesKeepEndsAndPeaks) {
  std::vector<PagePoint> points;
  for (int64_t i = 1; i <= 1000; ++i) points.push_back({i, double(i * 7919 % 1009)});
  EXPECT_EQ(thinned(points, 1000), points);
  for (const size_t most : {4, 5, 50, 999}) {
    const std::vector<PagePoint> kept = thinned(points, most);
    EXPECT_LE(kept.size(), most);
    EXPECT_GE(kept.size(), most / 2);
    EXPECT_EQ(kept.front(), points.front());
    EXPECT_EQ(kept.back(), points.back());
    EXPECT_EQ(std::ranges::adjacent_find(kept, std::ranges::greater_equal{}, &PagePoint::step), kept.end());
    const auto [low, high] = std::ranges::minmax(points, {}, &PagePoint::value);
    EXPECT_EQ(std::ranges::count(kept, low) + std::ranges::count(kept, high), 2) << most;
  }
}

TEST(RunPage, SettingsAreThoseThatHaveAValue) {
  const std::vector<PageSetting> all = page_settings({.model = "sdxl", .dataset = {"a b"}, .batch_size = 2});
  const auto find = [&](const char* name) { return std::ranges::find(all, name, &PageSetting::name); };
  ASSERT_NE(find("batch_size"), all.end());
  EXPECT_EQ(find("batch_size")->value, "2");
  EXPECT_EQ(find("batch_size")->subject, "Steps");
  EXPECT_FALSE(find("batch_size")->is_default);
  EXPECT_EQ(find("dataset")->value, "[\"a b\"]");
  EXPECT_TRUE(find("optimizer")->is_default);
  EXPECT_EQ(find("resume"), all.end());
  EXPECT_EQ(find("cache"), all.end()) << "has no value";
}

TEST(RunPage, CommandsAreForAShell) {
  const auto of = [](TrainMode mode) {
    return page_commands({.model = "it's", .output = "a b", .train = mode}, ModelKind::pictures, "x.safetensors");
  };
  EXPECT_EQ(of(TrainMode::lora)[0].text,
            "wick generate --model 'it'\\''s' --lora 'a b/x.safetensors' --prompt TEXT --out picture.png");
  EXPECT_EQ(of(TrainMode::lora)[1].text, "wick train --config 'a b/config.toml' --resume");
  EXPECT_EQ(of(TrainMode::full)[0].text, "wick generate --model 'a b/x.safetensors' --prompt TEXT --out picture.png");
  EXPECT_EQ(of(TrainMode::vae), of(TrainMode::full));
  EXPECT_EQ(page_commands({.model = "m", .output = "o"}, ModelKind::text, "lora")[0].text,
            "wick chat --model m --lora o/lora");
}

}  // namespace
}  // namespace wick
