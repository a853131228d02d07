// `wick forward` against diffusers, transformers and peft, and on wrong inputs.
#include "wick/pipelines/forward.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "device.h"
#include "io/files.h"
#include "source_dir.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/component.h"
#include "wick/text/t5_tokenizer.h"

namespace wick {
namespace {

const std::filesystem::path kGolden = test::source_dir() / "tests/golden";

// max |a - b| / max |b|
double relative_error(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to_vector(), y = b.to_vector();
  double error = 0, largest = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error = std::max(error, std::isnan(x[i]) ? INFINITY : std::abs(double(x[i]) - y[i]));
    largest = std::max(largest, std::abs(double(y[i])));
  }
  return error / largest;
}

struct Case {
  std::string name, component, lora;
  bool grad;
};

std::vector<Case> cases() {
  const std::string source = (kGolden / "cases/index.json").string();
  std::vector<Case> all;
  for (const auto& row : read_json(source))
    all.push_back({get<std::string>(row, "name", source), get<std::string>(row, "component", source),
                   row.at("lora").is_null() ? "" : get<std::string>(row, "lora", source),
                   get<bool>(row, "grad", source)});
  return all;
}

class Forward : public testing::TestWithParam<Case> {};

TEST_P(Forward, AgreesWithDiffusers) {
  const Case& c = GetParam();
  const TemporaryDirectory folder;
  std::vector<LoraFile> loras;
  if (!c.lora.empty()) loras.push_back({kGolden / c.lora});
  run_forward(kGolden / "sdxl", c.component, kGolden / "cases" / (c.name + ".in.safetensors"),
              folder / "out.safetensors", {.loras = loras, .grad = c.grad, .backend = &test::backend()});

  const SafetensorsFile found = SafetensorsFile::open(folder / "out.safetensors");
  const SafetensorsFile expected = SafetensorsFile::open(kGolden / "cases" / (c.name + ".out.safetensors"));
  EXPECT_EQ(found.tensors().size(), expected.tensors().size());
  double worst_output = 0, worst_gradient = 0;
  for (const auto& [name, info] : expected.tensors()) {
    ASSERT_TRUE(found.has(name)) << name;
    ASSERT_EQ(found.tensors().at(name).shape, info.shape) << name;
    const double error = relative_error(found.load(name), expected.load(name));
    const bool gradient = name.starts_with("grad.");
    EXPECT_LE(error, gradient ? 1e-3 : 1e-4) << name;
    double& worst = gradient ? worst_gradient : worst_output;
    worst = std::max(worst, error);
  }
  std::printf("%-24s outputs %.1e  gradients %.1e\n", c.name.c_str(), worst_output, worst_gradient);
}

INSTANTIATE_TEST_SUITE_P(Golden, Forward, testing::ValuesIn(cases()),
                         [](const auto& golden) { return golden.param.name; });

// Runs a component on the inputs of a golden case, with some of them replaced (by an empty tensor: left out).
void run_with(const std::string& component, const std::string& name, const std::map<std::string, Tensor>& replaced,
              const std::vector<LoraFile>& loras = {}, bool grad = false) {
  const TemporaryDirectory folder;
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "cases" / (name + ".in.safetensors"));
  std::map<std::string, Tensor> tensors;
  for (const auto& [key, info] : in.tensors()) tensors[key] = in.load(key);
  for (const auto& [key, tensor] : replaced) {
    if (tensor)
      tensors[key] = tensor;
    else
      tensors.erase(key);
  }
  save_safetensors(folder / "in.safetensors", tensors);
  run_forward(kGolden / "sdxl", component, folder / "in.safetensors", folder / "out.safetensors",
              {.loras = loras, .grad = grad});
}

TEST(ForwardErrors, NameTheTensor) {
  const auto expect_wrong = [](const std::string& component, const std::string& name,
                               const std::map<std::string, Tensor>& replaced,
                               std::initializer_list<std::string_view> parts, bool grad = false) {
    expect_error([&] { run_with(component, name, replaced, {}, grad); }, parts);
  };
  expect_wrong("unet", "unet", {{"timestep", {}}}, {"in.safetensors", "no tensor \"timestep\""});
  expect_wrong("unet", "unet", {{"timestep", zeros({3})}}, {"in.safetensors", "\"timestep\"", "[2]", "[3]"});
  expect_wrong("unet", "unet", {{"timestep", full({2}, NAN)}}, {"\"timestep\"", "finite", "nan"});
  expect_wrong("unet", "unet", {{"sample", zeros({2, 3, 8, 8})}}, {"\"sample\"", "[B, 4, h, w]", "[2, 3, 8, 8]"});
  expect_wrong("unet", "unet", {{"sample", zeros({2, 4, 0, 8})}}, {"\"sample\"", "[B, 4, h, w]", "[2, 4, 0, 8]"});
  expect_wrong("unet", "unet", {{"sample", zeros({2, 4, 8})}}, {"\"sample\"", "[B, 4, h, w]", "[2, 4, 8]"});
  expect_wrong("unet", "unet", {{"sample", full({2, 4, 8, 8}, INFINITY)}}, {"\"sample\"", "finite", "inf"});
  expect_wrong("unet", "unet", {{"sample", zeros({2, 4, 8, 8}, DType::i64)}}, {"\"sample\"", "F32", "I64"});
  expect_wrong("unet", "unet", {{"encoder_hidden_states", zeros({2, 77, 41})}}, {"[2, T, 40]", "[2, 77, 41]"});
  expect_wrong("unet", "unet", {{"text_embeds", zeros({1, 20})}}, {"\"text_embeds\"", "[2, 20]", "[1, 20]"});
  expect_wrong("unet", "unet", {{"time_ids", zeros({2, 5})}}, {"\"time_ids\"", "[2, 6]", "[2, 5]"});
  expect_wrong("unet", "unet", {}, {"no tensor \"target\""}, /*grad=*/true);
  expect_wrong("unet", "unet", {{"target", zeros({2, 4, 8, 8})}}, {"\"target\"", "[2, 4, 12, 20]"}, /*grad=*/true);
  expect_wrong("vae.encoder", "vae_encoder", {{"sample", zeros({1, 3, 7, 16})}},
               {"\"sample\"", "H >= 8", "[1, 3, 7, 16]"});
  expect_wrong("vae.decoder", "vae_decoder", {{"latent", zeros({1, 3, 4, 4})}}, {"\"latent\"", "[B, 4, h, w]"});
  const auto ids = [](int64_t id, int64_t length) {
    return Tensor::of(std::vector<int64_t>(size_t(length), id), {1, length});
  };
  expect_wrong("text_encoder", "text_encoder", {{"input_ids", ids(814, 77)}}, {"\"input_ids\"", "0 to 813", "814"});
  expect_wrong("text_encoder", "text_encoder", {{"input_ids", ids(-1, 77)}}, {"\"input_ids\"", "0 to 813", "-1"});
  expect_wrong("text_encoder", "text_encoder", {{"input_ids", ids(3, 78)}}, {"text_encoder", "77", "[1, 78]"});
  expect_wrong("text_encoder", "text_encoder", {{"input_ids", zeros({1, 77}, DType::bf16)}},
               {"\"input_ids\"", "I64", "F32", "BF16"});
  for (const float value : {0.5f, 3e9f, NAN, INFINITY})
    expect_wrong("text_encoder", "text_encoder", {{"input_ids", full({1, 77}, value)}},
                 {"\"input_ids\"", "whole numbers", fmt::format("found {}", value)});
  expect_wrong("unet2", "unet", {},
               {"unet2", "text_encoder, text_encoder_2, vae.encoder, vae.decoder, unet, tokenizer, tokenizer_2"});
}

TEST(ForwardErrors, NameTheFile) {
  const std::filesystem::path in = kGolden / "cases/unet.in.safetensors";
  const TemporaryDirectory folder;
  const auto run = [&](const std::filesystem::path& model, const std::filesystem::path& from,
                       const std::vector<LoraFile>& loras) {
    return [=, out = folder / "out.safetensors"] { run_forward(model, "unet", from, out, {.loras = loras}); };
  };
  expect_error(run(folder / "nowhere", in, {}), {"nowhere: has no transformer or UNet"});
  expect_error(run(kGolden / "sdxl", folder / "none.safetensors", {}), {"none.safetensors"});
  expect_error(run(kGolden / "sdxl", in, {{folder / "none.safetensors"}}), {"none.safetensors"});
  expect_error(run(kGolden / "sdxl", in, {{kGolden / "lora_te.safetensors"}}), {"lora_te.safetensors", "none of its"});
  EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
}

// A folder with a transformer alone, of goldens that have no more.
class TransformerFolder {
 public:
  TransformerFolder(const std::string& golden, const std::string& pipeline) : golden_(kGolden / golden) {
    std::filesystem::create_directory(folder_ / "m");
    std::filesystem::copy(golden_ / "transformer", folder_ / "m/transformer", std::filesystem::copy_options::recursive);
    write_plain(folder_ / "m/model_index.json", R"({"_class_name": ")" + pipeline + R"("})");
  }
  // On the inputs of a case, with some of them replaced (by an empty tensor: left out).
  Tensors run(const std::string& name, const std::map<std::string, Tensor>& replaced = {}, bool grad = false,
              bool lora = false) const {
    const SafetensorsFile in = SafetensorsFile::open(golden_ / (name + ".in.safetensors"));
    Tensors tensors;
    for (const auto& [key, info] : in.tensors()) tensors[key] = in.load(key);
    for (const auto& [key, tensor] : replaced) tensors[key] = tensor;
    std::erase_if(tensors, [](const auto& named) { return !named.second; });
    save_safetensors(folder_ / "in.safetensors", tensors);
    std::vector<LoraFile> loras;
    if (lora) loras.push_back({golden_ / "lora.safetensors"});
    run_forward(folder_ / "m", "transformer", folder_ / "in.safetensors", folder_ / "out.safetensors",
                {.loras = loras, .grad = grad});
    const SafetensorsFile out = SafetensorsFile::open(folder_ / "out.safetensors");
    Tensors found;
    for (const auto& [key, info] : out.tensors()) found[key] = out.load(key);
    return found;
  }
  void expect_golden(const std::string& name, bool grad, bool lora) const {
    const SafetensorsFile expected = SafetensorsFile::open(golden_ / (name + ".out.safetensors"));
    const Tensors found = run(name, {}, grad, lora);
    EXPECT_EQ(found.size(), expected.tensors().size());
    for (const auto& [key, x] : found)
      EXPECT_LE(relative_error(x, expected.load(key)), key.starts_with("grad.") ? 1e-4 : 1e-5) << key;
  }

 private:
  std::filesystem::path golden_;
  TemporaryDirectory folder_;
};

TEST(Forward, OneComponentIsEnoughForALora) {
  TransformerFolder("flux/dev", "FluxPipeline").expect_golden("wide_grad", /*grad=*/true, /*lora=*/true);
  TransformerFolder("sd3_transformer/dual", "StableDiffusion3Pipeline").expect_golden("lora_grad", true, true);
}

TEST(Forward, AnInputWithoutPartInTheOutputHasAGradientOfZeros) {
  const TransformerFolder sd3("sd3_transformer/one_head", "StableDiffusion3Pipeline");
  const Tensors found = sd3.run("grad", {{"skip_layers", Tensor::of(std::vector<int64_t>{0}, {1})}}, /*grad=*/true);
  for (const float value : found.at("grad.encoder_hidden_states").to_vector()) ASSERT_EQ(value, 0);
  EXPECT_NE(found.at("grad.hidden_states").to_vector().front(), 0);
}

TEST(ForwardErrors, NameWhatFlowModelsAreTold) {
  const TransformerFolder dev("flux/dev", "FluxPipeline"), schnell("flux/schnell", "FluxPipeline"),
      sd3("sd3_transformer/dual", "StableDiffusion3Pipeline");
  expect_error([&] { dev.run("square", {{"guidance", {}}}); }, {"no tensor \"guidance\"", "it holds enc", "txt_ids"});
  expect_error([&] { schnell.run("square", {{"guidance", full({1}, 3.5f)}}); }, {"\"guidance\"", "leave it out"});
  for (const float time : {-0.5f, 1.5f, 500.0f})
    expect_error(
        [&] {
          dev.run("square", {{"timestep", full({1}, time)}});
        },
        {"\"timestep\"", "from 0 to 1,", fmt::format("found {}", time)});
  expect_error([&] { sd3.run("wide", {{"timestep", full({1}, 1001)}}); }, {"\"timestep\"", "from 0 to 1000", "1001"});
  expect_error(
      [&] {
        sd3.run("wide", {{"hidden_states", zeros({1, 16, 6, 9})}});
      },
      {"in.safetensors", "\"hidden_states\"", "even sides", "w = 9"});
  expect_error(
      [&] {
        sd3.run("wide", {{"skip_layers", Tensor::of(std::vector<int64_t>{1, -1}, {2})}});
      },
      {"\"skip_layers\"", "from 0 on", "-1"});
}

TEST(Forward, TakesATimestepForAllSamplesAndWholeNumbers) {
  run_with("unet", "unet", {{"timestep", full({}, 3)}});
  run_with("unet", "unet", {{"timestep", Tensor::of(std::vector<int64_t>{3}, {1})}});
  run_with("text_encoder", "text_encoder", {{"input_ids", full({1, 77}, 3)}});
}

// tests/golden/tokenizer.json has the ids of transformers, cut and padded to 77.
TEST(Forward, WritesTheIdsOfJsonLines) {
  const TemporaryDirectory folder;
  const nlohmann::json cases = read_json(kGolden / "tokenizer.json");
  std::string lines;
  for (const auto& each : cases) lines += each.at("text").dump() + "\n";
  write_plain(folder / "in.jsonl", lines);
  for (const char* name : {"tokenizer", "tokenizer_2"}) {
    run_forward(kGolden / "sdxl", name, folder / "in.jsonl", folder / "out.jsonl");
    std::ifstream out(folder / "out.jsonl");
    for (const auto& each : cases) {
      std::string line;
      ASSERT_TRUE(std::getline(out, line));
      auto ids = nlohmann::json::parse(line).get<std::vector<int64_t>>();
      const auto expected = each.at(name).get<std::vector<int64_t>>();
      const int64_t end = ids.back(), pad = name == std::string("tokenizer") ? end : 0;
      if (ids.size() > expected.size()) ids[expected.size() - 1] = end;
      ids.resize(expected.size(), pad);
      EXPECT_EQ(ids, expected) << name << ": " << each.at("text");
    }
    EXPECT_EQ(out.peek(), EOF);
  }
}

TEST(Forward, KnowsTheTokenizerOfT5) {
  const TemporaryDirectory folder;
  std::filesystem::copy(kGolden / "t5_tokenizer", folder / "tokenizer_3");
  const std::string text = "a small red circle";
  EXPECT_EQ(t5_tokenizer_component("tokenizer_3").load_tokenizer(folder.path())(text),
            T5Tokenizer::load(kGolden / "t5_tokenizer").encode(text));
}

TEST(ForwardErrors, NameTheLine) {
  const TemporaryDirectory folder;
  const auto refused = [&](const std::string& lines, std::initializer_list<std::string_view> parts,
                           const ForwardOptions& options = {}) {
    write_plain(folder / "in.jsonl", lines);
    expect_error(
        [&] { run_forward(kGolden / "sdxl", "tokenizer", folder / "in.jsonl", folder / "out.jsonl", options); }, parts);
  };
  refused("\"a\"\n5\n", {"in.jsonl: line 2", "expected a JSON string, found 5"});
  refused("\"a\"\n\n\"b\"\n", {"in.jsonl: line 2", "not valid JSON"});
  refused("\"" + std::string(size_t{1} << 21, 'a') + "\"\n",
          {"in.jsonl: line 1: text: expected at most 1048576 bytes"});
  refused("\"a\"\n", {"--component tokenizer", "--grad"}, {.grad = true});
  refused("\"a\"\n", {"--component tokenizer", "--lora"}, {.loras = {{kGolden / "lora_te.safetensors"}}});
  EXPECT_FALSE(std::filesystem::exists(folder / "out.jsonl"));
}

// As transformers and diffusers save them; the values are those of bitsandbytes' own dequantisation.
TEST(Forward, ReadsWhatBitsandbytesQuantised) {
  for (const auto& [model, component] : {std::pair{"llama", ""}, {"flux", "transformer"}}) {
    const TemporaryDirectory folder;
    const std::filesystem::path from = kGolden / "bitsandbytes" / model;
    run_forward(from, component, from / "case.in.safetensors", folder / "out.safetensors",
                {.backend = &test::backend()});
    const SafetensorsFile found = SafetensorsFile::open(folder / "out.safetensors"),
                          want = SafetensorsFile::open(from / "case.out.safetensors");
    for (const auto& [name, info] : want.tensors())
      EXPECT_LE(relative_error(found.load(name), want.load(name)), 1e-5) << model;
  }
}

TEST(Forward, AddsLorasUp) {
  const LoraFile lora{kGolden / "lora_unet.safetensors"};
  run_with("unet", "unet", {}, {lora, {lora.path, -0.5f}});
  expect_error([&] { run_with("unet", "unet_grad", {}, {lora, lora}, /*grad=*/true); }, {"lora_unet.safetensors"});
}

}  // namespace
}  // namespace wick
