#include "wick/io/config.h"

#include "io/files.h"
#include "wick/io/json.h"

namespace wick {
namespace {

const char* const kText = R"({
  "layers": 12, "scale": 0.13025, "whole": 2, "flag": true, "name": "unet", "none": null,
  "channels": [320, 640, 1280], "heads": 8, "types": ["Down", "Up"], "huge": 18446744073709551615,
  "text_config": {"width": 768, "mixed": [1, "two"]}
})";

Config config() { return Config::parse(kText, "config.json"); }

TEST(Config, ReturnsWhatStandsThere) {
  const Config c = config();
  EXPECT_EQ(c.integer("layers"), 12);
  EXPECT_EQ(c.integer("layers", kPositive), 12);
  EXPECT_DOUBLE_EQ(c.number("scale"), 0.13025);
  EXPECT_DOUBLE_EQ(c.number("whole"), 2);
  EXPECT_TRUE(c.boolean("flag"));
  EXPECT_EQ(c.text("name"), "unet");
  EXPECT_EQ(c.integers("channels"), (std::vector<int64_t>{320, 640, 1280}));
  EXPECT_EQ(c.texts("types"), (std::vector<std::string>{"Down", "Up"}));
  EXPECT_EQ(c.integers_or_repeated("heads", 3), (std::vector<int64_t>{8, 8, 8}));
  EXPECT_EQ(c.integers_or_repeated("channels", 3), (std::vector<int64_t>{320, 640, 1280}));
  EXPECT_EQ(c.section("text_config").integer("width"), 768);
}

TEST(Config, TakesTheFallbackForAbsentAndNull) {
  const Config c = config();
  EXPECT_FALSE(c.has("none"));
  EXPECT_FALSE(c.has("absent"));
  EXPECT_EQ(c.integer_or("none", 7), 7);
  EXPECT_DOUBLE_EQ(c.number_or("absent", 0.5), 0.5);
  EXPECT_FALSE(c.boolean_or("absent", false));
  EXPECT_EQ(c.text_or("absent", "x"), "x");
  EXPECT_EQ(c.integer_or("layers", 7), 12);
}

TEST(Config, NamesFileKeyExpectedAndFound) {
  const Config c = config();
  expect_error([&] { c.integer("absent"); }, {"config.json: absent: the key is missing"});
  expect_error([&] { c.text("none"); }, {"config.json: none: the key is missing"});
  expect_error([&] { c.integer("scale"); }, {"config.json: scale: expected an integer, found 0.13025"});
  expect_error([&] { c.integer("name"); }, {"name: expected an integer, found \"unet\""});
  expect_error([&] { c.integer("huge"); }, {"huge: expected an integer"});
  expect_error([&] { c.integer("layers", {1, 8}); }, {"layers: expected an integer from 1 to 8, found 12"});
  expect_error([&] { c.integer_or("name", 1); }, {"name: expected an integer"});
  expect_error([&] { c.number("flag"); }, {"flag: expected a finite number, found true"});
  expect_error([&] { c.boolean("whole"); }, {"whole: expected true or false, found 2"});
  expect_error([&] { c.text("channels"); }, {"channels: expected a string, found a list"});
  expect_error([&] { c.integers("layers"); }, {"layers: expected a list of integers, found 12"});
  expect_error([&] { c.integers("channels", {1, 700}); }, {"channels[2]: expected an integer from 1 to 700"});
  expect_error([&] { c.integers_or_repeated("channels", 4); }, {"an integer or a list of 4, found a list of 3"});
  expect_error([&] { c.section("name"); }, {"name: expected an object"});
  expect_error([&] { c.section("text_config").texts("mixed"); }, {"text_config.mixed[0]: expected a string, found 1"});
  expect_error([&] { c.section("text_config").integer("depth"); }, {"text_config.depth: the key is missing"});
}

TEST(Config, RefusesWhatIsNotAJsonObject) {
  TemporaryDirectory dir;
  write_plain(dir / "config.json", "{\n  \"a\": 1,\n  oops\n}");
  expect_error([&] { Config::read(dir / "config.json"); }, {"config.json: not valid JSON: ", "line 3, column 3"});
  expect_error([] { Config::parse("[1]", "c"); }, {"c: expected a JSON object, found a list"});
  expect_error([] { Config::parse("", "c"); }, {"c: not valid JSON"});
  expect_error([] { Config::parse("{\"a\": \"\xff\"}", "c"); }, {"c: not valid JSON"});
  expect_error([] { Config::parse("{\"a\": 1e999}", "c"); }, {"c: not valid JSON"});
  expect_error([] { Config::parse("{\"a\": nan}", "c"); }, {"c: not valid JSON"});
  expect_error([] { Config::parse("{\"a\": 1NaN}", "c"); }, {"c: not valid JSON"});
  expect_error([] { Config::parse("{\"a\": --Infinity}", "c"); }, {"c: not valid JSON"});
  expect_error([] { Config::parse("{NaN: 1}", "c"); }, {"c: not valid JSON"});
  expect_error([] { Config::parse(std::string_view("{}\0{", 4), "c"); }, {"c: not valid JSON", "NUL"});
  expect_error([] { Config::parse(R"({"a": {"b": 1, "c": 2, "b": 1}})", "c"); }, {"c: the key \"b\" stands twice"});
  expect_error([] { Config::parse(R"({"a": [{"b": 1}, {"b": 1, "\u0062": 2}]})", "c"); }, {"\"b\" stands twice"});
  expect_error([] { Config::parse(std::string(1'000'000, '['), "c"); }, {"c: not valid JSON"});
  expect_error([&] { Config::read(dir / "missing.json"); }, {"missing.json: cannot open"});
}

// As Python's json writes them; a request for a number refuses them.
TEST(Config, ReadsPythonsNumbers) {
  const Config c =
      Config::parse(R"({"nan": NaN, "all": [Infinity,-Infinity], "text": "NaN, \"Infinity\"", "tiny": 0.5})", "c");
  EXPECT_EQ(c.text("text"), "NaN, \"Infinity\"");
  EXPECT_EQ(c.number("tiny"), 0.5);
  expect_error([&] { c.number("nan"); }, {"c: nan: expected a finite number, found NaN"});
  expect_error([&] { c.integer("nan"); }, {"c: nan: expected an integer, found NaN"});
  expect_error([&] { c.integers("all"); }, {"c: all[0]: expected an integer, found Infinity"});
  expect_error([&] { c.number("tiny", {1, 2}); }, {"c: tiny: expected a number from 1 to 2, found 0.5"});
  const std::string text = R"({"a": [NaN, Infinity, -Infinity], "b": "NaN"})";
  const nlohmann::json json = parse_json(text, "c", JsonNumbers::python);
  EXPECT_EQ(to_text(json), "{\n  \"a\": [\n    NaN,\n    Infinity,\n    -Infinity\n  ],\n  \"b\": \"NaN\"\n}\n");
  expect_error([&] { parse_json(text, "c"); }, {"c: not valid JSON"});
}

TEST(Json, GetterKeepsTheRangeOfItsType) {
  const auto json = parse_json(R"({"small": 200, "negative": -1, "big": 1e300})", "f");
  EXPECT_EQ(get<uint8_t>(json, "small", "f"), 200);
  EXPECT_EQ(get<int>(json, "negative", "f"), -1);
  expect_error([&] { get<int8_t>(json, "small", "f"); }, {"f: small: expected", "found 200"});
  expect_error([&] { get<uint64_t>(json, "negative", "f"); }, {"f: negative: expected", "found -1"});
  expect_error([&] { get<float>(json, "big", "f"); }, {"f: big: expected a finite number"});
  EXPECT_DOUBLE_EQ(get<double>(json, "big", "f"), 1e300);
  expect_error([&] { get<int>(json, "absent", "f"); }, {"f: the key \"absent\" is missing"});
}

}  // namespace
}  // namespace wick
