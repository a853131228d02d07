// LoRAs of other programs: their writers' results (tools/golden/adapters.py), and the LoRAs that Wick refuses.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "engine_model.h"
#include "io/float8.h"
#include "wick/io/image.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;
using Names = std::vector<std::pair<std::string, std::string>>;  // from, to

const fs::path kAdapters = kGolden / "adapters";
const std::string kLlama2 = (kGolden / "llama/llama2").string();
constexpr const char* kPeftFile = "adapter_model.safetensors";

std::string word(const fs::path& path) { return "'" + path.string() + "'"; }

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

Tensors load_all(const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Tensors all;
  for (const auto& [name, info] : file.tensors()) all[name] = file.load(name);
  return all;
}

// max |a - b| / max |b| over all tensors of b
double relative_error(const fs::path& a, const fs::path& b) {
  const SafetensorsFile found = SafetensorsFile::open(a), want = SafetensorsFile::open(b);
  double worst = 0;
  for (const auto& [name, info] : want.tensors()) {
    const std::vector<float> x = found.load(name).to_vector(), y = want.load(name).to_vector();
    EXPECT_EQ(x.size(), y.size()) << name;
    double error = 0, largest = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      error = std::max(error, std::isnan(x[i]) ? INFINITY : std::abs(double(x[i]) - y[i]));
      largest = std::max(largest, std::abs(double(y[i])));
    }
    worst = std::max(worst, error / largest);
  }
  return worst;
}

// The CPU, or the device and dtype that the environment names (scripts/gpu-check).
struct UnderTest {
  std::string flags = "--device cpu";
  double precision = 1e-5;  // of outputs, as relative_error() has it
  bool is_f32 = true;

  static UnderTest of_environment() {
    const char *device = std::getenv("WICK_TEST_DEVICE"), *dtype = std::getenv("WICK_TEST_DTYPE");
    if (!device) return {};
    const std::string type = dtype ? dtype : "f32";
    if (type == "f32") return {"--device " + std::string(device), 1e-4};
    return {"--device " + std::string(device) + (type == "bf16" ? " --bf16" : " --fp16"), type == "bf16" ? 5e-2 : 1e-2,
            false};
  }
};
const UnderTest kUnderTest = UnderTest::of_environment();

// A transformer of a golden as a folder of diffusers', which it is alone; other models as they are.
fs::path folder_of(const fs::path& golden) {
  if (!fs::exists(golden / "transformer")) return golden;
  static const TemporaryDirectory folders;
  const fs::path folder = folders / (golden.parent_path().filename().string() + "-" + golden.filename().string());
  if (fs::exists(folder)) return folder;
  fs::create_directories(folder);
  fs::copy(golden / "transformer", folder / "transformer");
  const bool is_flux = golden.string().find("flux") != std::string::npos;
  write_plain(folder / "model_index.json",
              fmt::format(R"({{"_class_name": "{}Pipeline"}})", is_flux ? "Flux" : "StableDiffusion3"));
  return folder;
}

struct Case {
  std::string name, model, component, inputs;
  fs::path lora, out;
  fs::path gradients = {}, gradient_inputs = {};  // of kinds that are trained

  static Case of(const std::string& name) {
    const nlohmann::json json = read_json(kAdapters / name / "case.json");
    Case c{name,
           folder_of(kGolden / json.at("model").get<std::string>()).string(),
           json.at("component"),
           (kGolden / json.at("inputs").get<std::string>()).string(),
           kAdapters / name / json.at("lora").get<std::string>(),
           kAdapters / name / "out.safetensors"};
    if (!json.contains("gradients")) return c;
    c.gradients = kAdapters / name / json.at("gradients").get<std::string>();
    c.gradient_inputs = kGolden / json.at("gradient_inputs").get<std::string>();
    return c;
  }
  bool is_language() const { return component.empty(); }
  std::string backward(const fs::path& to) const {
    Case with_target = *this;
    with_target.inputs = gradient_inputs.string();
    return with_target.forward(model, lora, to) + " --grad";
  }
  std::string forward(const fs::path& with_model, const fs::path& with_lora, const fs::path& to) const {
    return "forward " + kUnderTest.flags + " --model " + word(with_model) +
           (is_language() ? "" : " --component " + component) +
           (with_lora.empty() ? "" : " --lora " + word(with_lora)) + " --in " + word(inputs) + " --out " + word(to) +
           " --overwrite";
  }
};

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kAdapters))
    if (fs::exists(entry.path() / "case.json")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class Adapters : public testing::TestWithParam<std::string> {
 protected:
  // `wick forward` gives the result of the LoRA's writer.
  void expect_forward(const Case& c, const fs::path& model, const fs::path& lora, const fs::path& want) {
    const fs::path out = folder / "out.safetensors";
    const Outcome outcome = run_wick(c.forward(model, lora, out));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_LE(relative_error(out, want), kUnderTest.precision) << lora;
  }
  const TemporaryDirectory folder;
};

INSTANTIATE_TEST_SUITE_P(Of, Adapters, testing::ValuesIn(case_names()), [](const auto& i) { return i.param; });

TEST_P(Adapters, ComputeWhatTheirWritersDo) {
  const Case c = Case::of(GetParam());
  expect_forward(c, c.model, c.lora, c.out);
  if (!kUnderTest.is_f32) return;
  const fs::path bare = folder / "bare.safetensors";
  ASSERT_EQ(run_wick(c.forward(c.model, {}, bare)).code, 0);
  // An untrained one begins with its base's results.
  if (c.name.find("untrained") == std::string::npos) {
    EXPECT_GT(relative_error(bare, c.out), 1e-3);
  } else {
    EXPECT_LE(relative_error(bare, c.out), kUnderTest.precision);
  }
}

TEST_P(Adapters, HaveTheirWritersGradients) {
  const Case c = Case::of(GetParam());
  if (c.gradients.empty() || !kUnderTest.is_f32) return;
  const fs::path out = folder / "grad.safetensors";
  const Outcome outcome = run_wick(c.backward(out));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(relative_error(out, c.gradients), 1e-3);
}

// Drawing is planned on an outline of the model, which has no weights that an adapter could depend on.
TEST_P(Adapters, AreDrawnWith) {
  const Case c = Case::of(GetParam());
  if (!fs::exists(fs::path(c.model) / "vae")) return;
  const Outcome outcome = run_wick("generate " + kUnderTest.flags + " --model " + word(c.model) + " --lora " +
                                   word(c.lora) + " --prompt x --steps 1 --out " + word(folder / "x.png"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_P(Adapters, MergeIntoTheModel) {
  const Case c = Case::of(GetParam());
  if (!kUnderTest.is_f32) return;  // a merged model's weights would be rounded otherwise than the plain one's
  const fs::path merged = folder / "merged";
  const Outcome outcome =
      run_wick("merge --model " + word(c.model) + " --lora " + word(c.lora) + " --output " + word(merged));
  // Changes that the model's weights have no place for.
  const std::map<std::string, std::vector<std::string>> apart = {{"peft_bias_alone", {"a bias", "cannot be merged"}}};
  if (const auto words = apart.find(c.name); words != apart.end()) {
    expect_one_line(outcome, words->second);
    EXPECT_FALSE(fs::exists(merged));
    return;
  }
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_forward(c, merged, {}, c.out);
}

// Files in which other versions and programs name the same tensors.
void rename(const fs::path& from, const fs::path& to, const Names& names) {
  const SafetensorsFile file = SafetensorsFile::open(from);
  Tensors renamed;
  for (const auto& [key, tensor] : load_all(from)) {
    std::string name = key;
    for (const auto& [before, after] : names) name = replace_all(name, before, after);
    renamed[name] = tensor;
  }
  save_safetensors(to, renamed, file.metadata());
}

struct Spelling {
  const char* of;  // a case
  Names names;
};

const std::vector<Spelling> kSpellings = {
    // diffusers with transformers 5
    {"pipeline_text_encoder", {{"text_encoder.text_model.", "text_encoder."}}},
    {"pipeline_text_encoder_2", {{"text_encoder_2.text_model.", "text_encoder_2."}}},
    // diffusers before peft: without metadata, but with names
    {"pipeline", {{".lora_A.", ".lora.down."}, {".lora_B.", ".lora.up."}}},
    {"pipeline_text_encoder", {{".lora_A.", ".lora_linear_layer.down."}, {".lora_B.", ".lora_linear_layer.up."}}},
    {"unet_peft", {{"base_model.model.", ""}}},
    {"unet_kohya",
     {{"lora_unet_mid_block_attentions_0", "diffusion_model.middle_block.1"},
      {"_transformer_blocks_", ".transformer_blocks."},
      {"_attn1_to_q", ".attn1.to_q"},
      {"_attn2_to_out_0", ".attn2.to_out.0"},
      {"_ff_net_2", ".ff.net.2"}}},
};

TEST_F(Adapters, MayBeSpelledOtherwise) {
  for (const Spelling& spelling : kSpellings) {
    const Case c = Case::of(spelling.of);
    SCOPED_TRACE(spelling.of + (": " + spelling.names.front().second));
    fs::path file = c.lora;
    if (fs::is_directory(file)) file /= fs::exists(file / kPeftFile) ? kPeftFile : "pytorch_lora_weights.safetensors";
    const fs::path to = folder / "renamed.safetensors";
    rename(file, to, spelling.names);
    if (std::string(spelling.of) != "unet_peft") {
      expect_forward(c, c.model, to, c.out);
      continue;
    }
    // Without an alpha it is the rank, as in diffusers: r 2, lora_alpha 8.
    Tensors tensors = load_all(to);
    for (auto& [name, tensor] : tensors)
      if (name.ends_with(".lora_B.weight")) tensor = 4 * tensor;
    save_safetensors(to, tensors);
    expect_forward(c, c.model, to, c.out);
  }
}

// alpha is the rank here: in diffusers before peft, and in ComfyUI's and OneTrainer's form of the same with alphas.
TEST_F(Adapters, OldAndForeignNames) {
  const Case c = Case::of("unet_kohya");
  const fs::path kohya = c.lora, to = folder / "l.safetensors";
  const Names dotted = {{"lora_unet_mid_block_attentions_0", "mid_block.attentions.0"},
                        {"_transformer_blocks_", ".transformer_blocks."},
                        {"_attn1_to_q", ".attn1.processor.to_q"},
                        {"_attn2_to_out_0", ".attn2.processor.to_out"},
                        {"_ff_net_2", ".ff.net.2"}};
  for (const char* prefix : {"", "unet."}) {
    Tensors tensors;
    rename(kohya, to, dotted);
    for (const auto& [key, tensor] : load_all(to)) {
      if (key.ends_with(".alpha")) continue;
      std::string name = key;
      const std::string join = name.find("processor") == name.npos ? ".lora" : "_lora";
      for (const char* end : {"down", "up"}) name = replace_all(name, std::string(".lora_") + end, join + "." + end);
      tensors[prefix + name] = tensor;
    }
    save_safetensors(to, tensors);
    expect_forward(c, c.model, to, c.out);
  }
}

TEST_F(Adapters, TextEncodersOfComfyUIsFormAndEmbeddingsBesideThem) {
  for (const auto& [component, comfy] : {std::pair{"text_encoder", "clip_l"}, {"text_encoder_2", "clip_g"}}) {
    const Case c = Case::of(std::string("pipeline_") + component);
    const fs::path out = folder / "out.safetensors", to = folder / "l.safetensors";
    for (const char* inner : {"text_model.", ""}) {
      Tensors tensors;
      for (const auto& [name, tensor] : load_all(c.lora)) {
        const std::string prefix = std::string(component) + ".";
        if (!name.starts_with(prefix)) continue;
        const std::string module = replace_all(name.substr(prefix.size()), "text_model.", inner);
        tensors["text_encoders." + std::string(comfy) + ".transformer." + module] = tensor;
        const size_t end = module.find(".lora_");
        // r 2: alpha 6, but 1 in the first layer; or alpha 3 over the root of 2
        const bool first = module.find("layers.0.") != module.npos;
        tensors["text_encoders." + std::string(comfy) + ".transformer." + module.substr(0, end) + ".alpha"] =
            full({}, comfy == std::string("clip_g") ? 3 * std::sqrt(2.0f)
                     : first                        ? 1
                                                    : 6);
      }
      tensors["bundle_emb.cat." + std::string(comfy) + "_out"] = full({2, 4}, 0.5f);
      save_safetensors(to, tensors);
      const Outcome outcome = run_wick(c.forward(c.model, to, out));
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_NE(outcome.err.find("1 tensor of embeddings is not applied"), std::string::npos) << outcome.err;
      EXPECT_LE(relative_error(out, c.out), 1e-5);
    }
  }
}

// A word that has a token's own vector is that token: among ids, and in a prompt.
TEST_F(Adapters, WordsOfAFileAreTokens) {
  const std::string model = (kGolden / "sdxl").string();
  const Tensor table = load_all(fs::path(model) / "text_encoder/model.safetensors")
                           .at("text_model.embeddings.token_embedding.weight"),
               table_g = load_all(fs::path(model) / "text_encoder_2/model.safetensors")
                             .at("text_model.embeddings.token_embedding.weight");
  const int64_t vocabulary = table.dim(0);
  const fs::path lora = folder / "l.safetensors", ids = folder / "ids.safetensors";
  const std::string module = "lora_te1_text_model_encoder_layers_0_mlp_fc1.diff_b";
  const auto rows = [](const Tensor& all, int64_t first, int64_t end) { return contiguous(slice(all, 0, first, end)); };
  const int64_t width = load_all(fs::path(model) / "text_encoder/model.safetensors")
                            .at("text_model.encoder.layers.0.mlp.fc1.bias")
                            .dim(0);
  save_safetensors(lora, {{module, zeros({width})},
                          {"bundle_emb.sks.clip_l", rows(table, 5, 7)},
                          {"bundle_emb.sks.clip_g", rows(table_g, 5, 7)}});
  const auto encoded = [&](const std::vector<int64_t>& tokens, const std::string& name) {
    save_safetensors(ids, {{"input_ids", Tensor::of(tokens, {1, int64_t(tokens.size())})}});
    const Outcome outcome =
        run_wick("forward --device cpu --model " + word(model) + " --component text_encoder --lora " + word(lora) +
                 " --in " + word(ids) + " --out " + word(folder / name));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  };
  encoded({1, vocabulary, vocabulary + 1, 3, 2}, "added");
  encoded({1, 5, 6, 3, 2}, "plain");
  EXPECT_EQ(relative_error(folder / "added", folder / "plain"), 0);
  save_safetensors(ids, {{"input_ids", Tensor::of(std::vector<int64_t>{vocabulary + 2}, {1, 1})}});
  expect_one_line(run_wick("forward --device cpu --model " + word(model) + " --component text_encoder --lora " +
                           word(lora) + " --in " + word(ids) + " --out " + word(folder / "none")),
                  {"input_ids", std::to_string(vocabulary + 1)});

  const auto draw = [&](const std::string& prompt, const std::string& flags, const std::string& name) {
    const Outcome outcome = run_wick("generate --device cpu --steps 1 --model " + word(model) + " --lora " +
                                     word(lora) + " --prompt '" + prompt + "' --out " + word(folder / name) + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read_image(folder / name);
  };
  const std::string comfyui = " --prompt-syntax comfyui";
  const Image with = draw("a Sks b", comfyui, "1.png");
  EXPECT_EQ(with.rgb, draw("a embedding:sks b", comfyui, "2.png").rgb);
  EXPECT_NE(with.rgb, draw("a b", comfyui, "3.png").rgb);
  const Image plain = draw("a (sks) b", "", "4.png");
  EXPECT_NE(plain.rgb, draw("a (skss) b", "", "5.png").rgb);
  expect_one_line(run_wick("generate --device cpu --steps 1 --model " + word(model) + " --lora " + word(lora) +
                           " --prompt 'embedding:other'" + comfyui + " --out " + word(folder / "6.png")),
                  {"embedding:other", "no --lora holds"});
  save_safetensors(lora, {{module, zeros({width})}, {"bundle_emb.sks.clip_l_out", rows(table, 5, 7)}});
  const Outcome columns = run_wick("generate --device cpu --steps 1 --model " + word(model) + " --prompt x --column " +
                                   word(lora) + ":0.5 --column " + word(lora) + " --out " + word(folder / "7.png"));
  EXPECT_EQ(columns.code, 0) << columns.err;
  const std::string note = "1 tensor of embeddings is not applied";
  EXPECT_NE(columns.err.find(note), columns.err.npos) << columns.err;
  EXPECT_EQ(columns.err.find(note), columns.err.rfind(note)) << columns.err;  // once for one file
}

// A GGUF file of f32 can be the base, as a folder can; blocks differ from the weights that PEFT began with.
TEST_F(Adapters, PissaOfGgufFiles) {
  const fs::path model = folder / "model", lora = folder / "lora";
  test::write_engine_model(model, "llama3");
  const int64_t hidden = read_json(model / "config.json").at("hidden_size");
  Rng rng(3);
  fs::create_directory(lora);
  const std::string module = "base_model.model.model.layers.0.mlp.gate_proj";
  const int64_t inner = read_json(model / "config.json").at("intermediate_size");
  save_safetensors(lora / kPeftFile, {{module + ".lora_A.weight", 0.1f * random_normal({2, hidden}, rng)},
                                      {module + ".lora_B.weight", 0.1f * random_normal({inner, 2}, rng)}});
  write_plain(lora / "adapter_config.json",
              R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "init_lora_weights": "pissa"})");
  const auto run = [&](const std::string& arguments) {
    const Outcome outcome = run_wick(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  };
  const fs::path f32 = folder / "f32.gguf", q8 = folder / "q8.gguf", merged = folder / "merged.gguf";
  run("convert --model " + word(model) + " --dtype f32 --output " + word(f32));
  run("convert --model " + word(model) + " --dtype q8_0 --output " + word(q8));
  run("merge --model " + word(f32) + " --lora " + word(lora) + " --output " + word(merged));

  Case c{"", "", "", (kAdapters / "ids.safetensors").string(), {}, {}};
  const fs::path want = folder / "want.safetensors";
  run(c.forward(model, lora, want));
  expect_forward(c, f32, lora, want);
  expect_forward(c, merged, {}, want);
  expect_one_line(run_wick(c.forward(q8, lora, folder / "none")), {"gate_proj", "PiSSA", "quantised", "q8_0"});
  expect_one_line(run_wick(c.forward(model, lora.string() + ":0.5", folder / "none")), {"PiSSA", "strength", "0.5"});
  // Two on one module: the second would decompose the remainder of the first.
  expect_one_line(run_wick(c.forward(model, lora, folder / "none") + " --lora " + word(lora)), {"gate_proj", "both"});
}

// A setting of adapter_config.json and the words of its error.
struct WrongSetting {
  std::string key, value;  // JSON
  std::vector<std::string> words;
  std::string of = "patterns";
};

const std::vector<WrongSetting> kWrongSettings = {
    {"peft_type", R"j("ADALORA")j", {"peft_type", "ADALORA", "LORA"}},
    {"peft_type", R"j("LOHA")j", {"adapter_config.json", "alpha", "missing"}},
    {"peft_type", R"j("IA3")j", {"is of a LoRA", "adapter_config.json", "peft_type"}},
    {"peft_type", "7", {"peft_type", "string"}},
    {"use_dora", "true", {"no magnitude", "use_dora"}},
    {"lora_bias", "true", {"no bias", "lora_bias"}},
    {"kasa_config", R"j({"beta": 1})j", {"kasa_config"}},
    {"r", "7", {"down_proj", "rank 3", "adapter_config.json", "7"}},
    {"r", "0", {"r should be at least 1", "0"}},
    {"r", "3.5", {": r:", "integer"}},
    {"rank_pattern", R"j({"q_proj": 5})j", {"q_proj", "rank", "says 5"}},
    {"rank_pattern", R"j({"q_proj": 1e300})j", {"q_proj", "rank"}},
    {"lora_alpha", "1e999", {"adapter_config.json"}},
    {"lora_alpha", "1e39", {"alpha", "too large"}},
    {"lora_alpha", "null", {"lora_alpha", "missing"}},
    {"alpha_pattern", "[1]", {"alpha_pattern", "object"}},
    {"alpha_pattern", R"j({"q_proj": "four"})j", {"alpha_pattern", "q_proj", "number"}},
    {"alpha_pattern", R"j({"(q_proj": 4})j", {"alpha_pattern", "(q_proj", "no regular expression", "parenthes"}},
    {"alpha_pattern", R"j({"((\\w+\\.?)+)+[xyz]": 4})j", {"alpha_pattern", "too many steps"}},
    {"alpha_pattern", R"j({"(?R)": 4})j", {"(?R", "does not read"}},
    {"alpha_pattern", R"j({"(*ACCEPT)": 4})j", {"(*A", "does not read"}},
    {"alpha_pattern", R"j({"\\Qq_proj\\E": 4})j", {"does not read"}},
    {"alpha_pattern", R"j({"a{,3}": 4})j", {"{,3", "does not read"}},
    {"alpha_pattern",
     R"j({"((((((((((a{1000}){1000}){1000}){1000}){9}){9}){9}){9}){9}){9})": 4})j",
     {"no regular expression"}},
    {"init_lora_weights", R"j("pissa_niter_16")j", {"pissa_niter_16", "cannot be repeated"}},
    {"init_lora_weights", R"j("corda")j", {"corda", "cannot be repeated"}},
    {"init_lora_weights", R"j("loftq")j", {"loftq", "cannot be repeated"}},
    {"init_lora_weights", R"j("lora_ga")j", {"lora_ga", "cannot be repeated"}},
    {"init_lora_weights", R"j("tomorrow")j", {"tomorrow", "does not know"}},
    {"init_lora_weights", "[]", {"init_lora_weights", "string"}},
    {"init_lora_weights", R"j("pissa")j", {"lm_head", "PiSSA", "embedding"}, "tied_head"},
    {"num_cayley_neumann_terms", "-1", {"num_cayley_neumann_terms", "from 0 to 1000", "-1"}, "peft_oft"},
    {"num_cayley_neumann_terms", "1001", {"num_cayley_neumann_terms", "from 0 to 1000", "1001"}, "peft_oft"},
    {"num_cayley_neumann_terms", "2.5", {"num_cayley_neumann_terms", "integer"}, "peft_oft"},
};

TEST_F(Adapters, SettingsThatCannotBeHeeded) {
  for (const WrongSetting& wrong : kWrongSettings) {
    SCOPED_TRACE(wrong.key + " " + wrong.value);
    const Case c = Case::of(wrong.of);
    const fs::path lora = folder / "lora";
    fs::remove_all(lora);
    fs::copy(c.lora, lora);
    // As text: some numbers are none that the JSON library holds.
    nlohmann::json config = read_json(lora / "adapter_config.json");
    config[wrong.key] = "PLACE";
    write_plain(lora / "adapter_config.json", replace_all(config.dump(), "\"PLACE\"", wrong.value));
    const Outcome outcome = run_wick(c.forward(c.model, lora, folder / "out"));
    expect_one_line(outcome, wrong.words);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
}

TEST_F(Adapters, ManyPatternsAreBounded) {
  const Case c = Case::of("patterns");
  const fs::path lora = folder / "lora";
  fs::copy(c.lora, lora);
  nlohmann::json config = read_json(lora / "adapter_config.json");
  const auto refuse = [&](const nlohmann::json& patterns, const std::vector<std::string>& words) {
    config["alpha_pattern"] = patterns;
    write_plain(lora / "adapter_config.json", config.dump());
    expect_one_line(run_wick(c.forward(c.model, lora, folder / "out")), words);
  };
  nlohmann::json plain, regexes;
  for (int i = 0; i <= 10000; ++i) plain["m" + std::to_string(i)] = 1;
  for (int i = 0; i <= 64; ++i) regexes["m" + std::to_string(i) + "+"] = 1;
  refuse(plain, {"alpha_pattern", "10000 patterns"});
  refuse(regexes, {"alpha_pattern", "64 regular expressions"});
  refuse({{std::string(1001, 'a'), 1}}, {"alpha_pattern", "longer than 1000 bytes"});
}

// The same settings beside the tensors, where diffusers keeps them.
struct WrongHeader {
  std::string metadata;
  std::vector<std::string> words;
};

const std::string kUnet = R"("unet.r": 2, "unet.lora_alpha": 8)";

const std::vector<WrongHeader> kWrongHeaders = {
    {"{", {"lora_adapter_metadata", "not valid JSON"}},
    {"[]", {"lora_adapter_metadata", "object"}},
    {"7", {"lora_adapter_metadata", "object"}},
    {"{}", {"lora_adapter_metadata", "no component"}},
    {R"({"text_encoder.lora_alpha": 4})",
     {"lora_adapter_metadata tells of text_encoder, but not of", "unet.mid_block"}},
    {R"({"unet.r": 2})", {"unet.lora_alpha", "missing"}},
    {"{" + kUnet + R"(, "unet.use_dora": true})", {"no magnitude", "use_dora"}},
    {"{" + kUnet + R"(, "unet.lora_bias": true})", {"no bias", "lora_bias"}},
    {"{" + kUnet + R"(, "unet.bias": "all"})", {"unet.bias", "all"}},
    {"{" + kUnet + R"(, "unet.rank_pattern": {"to_q": 5}})", {"to_q", "rank 2", "says 5"}},
    {"{" + kUnet + R"(, "unet.alpha_pattern": {"(to_q": 5}})", {"unet.alpha_pattern", "(to_q"}},
    {"{" + kUnet + R"(, "unet.init_lora_weights": "pissa_niter_4"})", {"unet.init_lora_weights", "pissa_niter_4"}},
};

TEST_F(Adapters, HeadersThatCannotBeHeeded) {
  const Case c = Case::of("pipeline");
  Tensors tensors;
  for (const auto& [name, tensor] : load_all(c.lora / "pytorch_lora_weights.safetensors"))
    if (name.starts_with("unet.") && name.find("ff.net") == name.npos) tensors[name] = tensor;
  const fs::path lora = folder / "l.safetensors", out = folder / "out";
  for (const WrongHeader& wrong : kWrongHeaders) {
    SCOPED_TRACE(wrong.metadata);
    save_safetensors(lora, tensors, {{"lora_adapter_metadata", wrong.metadata}});
    expect_one_line(run_wick(c.forward(c.model, lora, out)), wrong.words);
    EXPECT_FALSE(fs::exists(out));
  }
  // Two alphas that differ: a tensor's, and the header's.
  Tensors both = tensors;
  const std::string key = tensors.begin()->first;
  both[key.substr(0, key.find(".lora_")) + ".alpha"] = full({}, 3);
  save_safetensors(lora, both, {{"lora_adapter_metadata", "{" + kUnet + "}"}});
  expect_one_line(run_wick(c.forward(c.model, lora, out)), {".alpha", "is 3", "lora_adapter_metadata", "8"});
}

TEST_F(Adapters, APeftFileWithoutItsConfigIsRefused) {
  const Case c = Case::of("patterns");
  const fs::path alone = folder / "moved.safetensors", lora = folder / "lora", out = folder / "out";
  fs::copy(c.lora / kPeftFile, alone);
  const std::vector<std::string> words = {"PEFT keeps the alpha", "adapter_config.json",
                                          "put both files into one folder"};
  expect_one_line(run_wick(c.forward(c.model, alone, out)), words);
  fs::create_directory(lora);
  fs::copy(alone, lora / kPeftFile);
  expect_one_line(run_wick(c.forward(c.model, lora, out)), words);
  expect_one_line(run_wick(c.forward(c.model, lora / kPeftFile, out)), words);
  fs::copy(c.lora / "adapter_config.json", lora / "adapter_config.json");
  expect_forward(c, c.model, lora / kPeftFile, c.out);
}

TEST_F(Adapters, TokensOfAnotherVocabularyAreRefused) {
  const Case c = Case::of("tokens");
  const fs::path lora = folder / "lora", out = folder / "out";
  fs::copy(c.lora, lora);
  nlohmann::json config = read_json(c.lora / "adapter_config.json");
  const auto with = [&](const nlohmann::json& tokens) {
    config["trainable_token_indices"] = {{"embed_tokens", tokens}, {"lm_head", {2, 96, 0}}};
    write_plain(lora / "adapter_config.json", config.dump());
    return run_wick(c.forward(c.model, lora, out));
  };
  expect_one_line(with({69, 97}), {"adapter_model", "token 97", "97 of this model"});
  expect_one_line(with({69, -1}), {"adapter_model", "token -1"});
  expect_one_line(with({69, 69}), {"adapter_model", "twice"});
  expect_one_line(with({69}), {"embed_tokens", "[1, 32]", "[2, 32]"});
  expect_one_line(with(nlohmann::json::array()), {"embed_tokens", "trainable_token_indices"});
}

// llama.cpp's files, which keep one alpha for all modules and rows of queries and keys in another order.
TEST_F(Adapters, MayBeGgufFiles) {
  const Case c = Case::of("patterns");
  const fs::path gguf = folder / "l.gguf", merged = folder / "merged", out = folder / "out";
  const Outcome converted =
      run_wick("convert --lora " + word(c.lora) + " --model " + word(c.model) + " --to gguf --output " + word(gguf));
  ASSERT_EQ(converted.code, 0) << converted.err;
  expect_forward(c, c.model, gguf, c.out);
  ASSERT_EQ(run_wick("merge --model " + word(c.model) + " --lora " + word(gguf) + " --output " + word(merged)).code, 0);
  if (kUnderTest.is_f32) expect_forward(c, merged, {}, c.out);
  expect_one_line(run_wick(Case::of("unet_kohya").forward(kModel, gguf, out)), {"l.gguf", "language model"});
  const fs::path other = kGolden / "llama/qwen3";
  expect_one_line(run_wick(c.forward(other, gguf, out)), {"l.gguf", "\"llama\"", "\"qwen3\""});
}

// PEFT would replace the model's head by the file's.
TEST_F(Adapters, AHeadThatIsNotTheModelsIsRefused) {
  const Case c = Case::of("head");
  const fs::path lora = folder / "lora", out = folder / "out";
  fs::copy(c.lora, lora);
  const std::string head = "base_model.model.lm_head.base_layer.weight";
  const auto with = [&](const std::string& name, const Tensor& tensor) {
    Tensors tensors = load_all(c.lora / kPeftFile);
    tensors[name] = tensor;
    save_safetensors(lora / kPeftFile, tensors);
  };
  const Tensor own = load_all(c.lora / kPeftFile).at(head);
  with(head, own * 1.01f);
  expect_one_line(run_wick(c.forward(c.model, lora, out)), {"lm_head.base_layer.weight", "not the model's own"});
  with(head, contiguous(slice(own, 0, 0, 90)));
  expect_one_line(run_wick(c.forward(c.model, lora, out)), {"lm_head.base_layer.weight", "[90, 32]", "[97, 32]"});
  with("base_model.model.model.embed_tokens.weight", own);
  expect_one_line(run_wick(c.forward(c.model, lora, out)), {"embed_tokens.weight", "not the model's own"});
  expect_one_line(run_wick("merge --model " + word(c.model) + " --lora " + word(lora) + " --output " + word(out)),
                  {"embed_tokens.weight", "not the model's own"});
  with("base_model.model.model.layers.9.mlp.base_layer.weight", own);
  expect_one_line(run_wick(c.forward(c.model, lora, out)), {"layers.9.mlp.base_layer.weight", "fits no layer"});
  with(head, cast(own, DType::bf16));  // rounded, as in a model loaded so
  expect_one_line(run_wick(c.forward(c.model, c.lora.string() + ":x", out)), {"'x'"});
  EXPECT_EQ(run_wick(c.forward(c.model, lora, out)).code, 0);
}

// A NaN or infinity in a factor or an alpha ends every command before anything is written.
TEST_F(Adapters, WhatIsNotFiniteIsRefusedEverywhere) {
  const fs::path model = folder / "text";
  fs::copy(kGolden / "llama/text", model);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy(kGolden / "tokenizers/qwen3" / file, model / file);
  const nlohmann::json config = read_json(model / "config.json");
  const int64_t hidden = config.at("hidden_size"), inner = config.at("intermediate_size");
  write_plain(folder / "texts.jsonl", "{\"text\": \"Once upon a time\"}\n");
  const std::string module = "base_model.model.model.layers.0.mlp.gate_proj";
  const fs::path lora = folder / "l.safetensors", out = folder / "out";
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

  const std::string base = " --model " + word(model) + " --lora " + word(lora);
  const std::vector<std::string> commands = {
      "forward" + base + " --in " + word(kAdapters / "ids.safetensors") + " --out " + word(out),
      "generate" + base + " --prompt x --max-tokens 1", "merge" + base + " --output " + word(out),
      "chat --chat-template chatml" + base + " </dev/null",
      "eval" + base + " --dataset " + word(folder / "texts.jsonl")};
  const auto refuse = [&](float down, float up, float alpha, const std::vector<std::string>& words) {
    save_safetensors(lora, {{module + ".lora_A.weight", full({2, hidden}, down)},
                            {module + ".lora_B.weight", full({inner, 2}, up, DType::bf16)},
                            {module + ".alpha", full({}, alpha)}});
    for (const std::string& command : commands) {
      SCOPED_TRACE(command);
      const Outcome outcome = run_wick(command);
      expect_one_line(outcome, words);
      EXPECT_EQ(outcome.code, 1);
      EXPECT_EQ(outcome.out, "");
      EXPECT_FALSE(fs::exists(out));
    }
  };
  refuse(nan, 1, 2, {"l.safetensors", "gate_proj.lora_A.weight", "nan"});
  refuse(1, -infinity, 2, {"l.safetensors", "gate_proj.lora_B.weight", "-inf"});
  refuse(1, 1, infinity, {"l.safetensors", "gate_proj.alpha", "one finite number"});
  refuse(1, 1, nan, {"l.safetensors", "gate_proj.alpha", "one finite number"});

  save_safetensors(lora, {{"lora_unet_middle_block_1_proj_in.lora_down.weight", full({2, 24}, nan)},
                          {"lora_unet_middle_block_1_proj_in.lora_up.weight", full({24, 2}, 1)}});
  expect_one_line(run_wick("generate --prompt x --steps 1 --model " + word(kModel) + " --lora " + word(lora) +
                           " --out " + word(folder / "x.png")),
                  {"l.safetensors", "proj_in.lora_down.weight"});
}

// The file's largest tensor but the base model's own, a factor whatever the kind, in integers.
std::string with_integers(const fs::path& file) {
  Tensors tensors = load_all(file);
  const auto size = [](const auto& entry) {
    return entry.first.find(".base_layer.") == std::string::npos ? entry.second.numel() : 0;
  };
  const auto largest = std::ranges::max_element(tensors, {}, size);
  std::vector<int64_t> numbers;
  for (const float value : largest->second.to_vector()) numbers.push_back(std::lround(100 * value));
  const std::string key = largest->first;
  tensors[key] = Tensor::of(numbers, largest->second.shape());
  const auto metadata = SafetensorsFile::open(file).metadata();
  save_safetensors(file, tensors, metadata);
  return key;
}

TEST_P(Adapters, FactorsOfIntegersAreRefused) {
  const Case c = Case::of(GetParam());
  const fs::path lora = folder / "lora", out = folder / "out";
  fs::copy(c.lora, lora);
  fs::path file = lora;
  if (fs::is_directory(lora)) file /= fs::exists(lora / kPeftFile) ? kPeftFile : "pytorch_lora_weights.safetensors";
  const std::string key = with_integers(file);
  for (const std::string& command : {c.forward(c.model, lora, out), "inspect " + word(file)}) {
    SCOPED_TRACE(command);
    const Outcome outcome = run_wick(command);
    expect_one_line(outcome, {file.string(), key, "is I64; expected floats"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_FALSE(fs::exists(out));
  }
}

// By every command that reads adapters, before anything is written.
TEST_F(Adapters, TypesThatHoldNoFactorsAreRefusedEverywhere) {
  const std::string base = "lora_unet_middle_block_1_proj_in", model = word(kModel);
  const fs::path lora = folder / "l.safetensors", out = folder / "out.safetensors";
  const std::string data = word(test::source_dir() / "data/tiny-style"), with_lora = " --lora " + word(lora);
  const std::vector<std::string> commands = {
      "inspect " + word(lora),
      "generate --prompt x --steps 1 --model " + model + with_lora + " --out " + word(folder / "x.png"),
      "train --steps 1 --model " + model + " --dataset " + data + " --from " + word(lora) + " --output " +
          word(folder / "run"),
      "merge --model " + model + with_lora + " --output " + word(folder / "merged"),
      "merge" + with_lora + " --output " + word(out),
      "convert" + with_lora + " --to comfy --model " + model + " --output " + word(out),
      "convert" + with_lora + " --rank 1 --output " + word(out)};
  const auto refuse = [&](const std::string& suffix, const std::string& dtype, const std::string& bytes,
                          const std::vector<int64_t>& shape, const std::string& expected) {
    std::vector<StoredEntry> entries = {
        {base + ".lora_down.weight", "F32", {1, 24}, of_floats(std::vector<float>(24, 1))},
        {base + ".lora_up.weight", "F32", {24, 1}, of_floats(std::vector<float>(24, 1))}};
    std::erase_if(entries, [&](const StoredEntry& entry) { return entry.name == base + suffix; });
    entries.push_back({base + suffix, dtype, shape, bytes});
    write_stored(lora, entries);
    for (const std::string& command : commands) {
      SCOPED_TRACE(command);
      const Outcome outcome = run_wick(command);
      expect_one_line(outcome, {lora.string(), "\"" + base + suffix + "\" is ", expected});
      EXPECT_EQ(outcome.code, 1);
      for (const char* name : {"x.png", "run", "merged", "out.safetensors"}) EXPECT_FALSE(fs::exists(folder / name));
    }
  };
  for (const auto& [dtype, size] : std::initializer_list<std::pair<const char*, size_t>>{
           {"BOOL", 1}, {"U8", 1}, {"I8", 1}, {"I16", 2}, {"U16", 2}, {"I32", 4}, {"U32", 4}, {"I64", 8}, {"U64", 8}})
    refuse(".lora_up.weight", dtype, std::string(24 * size, '\1'), {24, 1}, std::string(dtype) + "; expected floats");
  refuse(".lora_down.weight", "F8_E8M0", std::string(24, 'x'), {1, 24}, "F8_E8M0; expected floats");
  refuse(".dora_scale", "I8", std::string(24, '\1'), {24, 1}, "I8; expected floats");
  refuse(".alpha", "BOOL", "\1", {}, "BOOL; expected a number");
  refuse(".lora_down.scale_weight", "F32", of_floats({1}), {}, "a scale of quantised factors");
  refuse(".lora_down.SCB", "F32", of_floats({1}), {1}, "a scale of quantised factors");
}

// kohya's scripts write an alpha as an integer where it was given as one.
TEST_F(Adapters, AlphasMayBeIntegers) {
  const std::string base = "lora_unet_middle_block_1_proj_in";
  const fs::path lora = folder / "l.safetensors";
  save_safetensors(lora, {{base + ".lora_down.weight", full({2, 24}, 1)},
                          {base + ".lora_up.weight", full({24, 2}, 1)},
                          {base + ".alpha", Tensor::of(std::vector<int64_t>{4}, {})}});
  const Outcome outcome = run_wick("inspect " + word(lora));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("     2        4"), std::string::npos) << outcome.out;
}

// The head, by PEFT's name for it.
TEST_F(Adapters, TheHeadIsTrainedSavedResumedAndMerged) {
  const fs::path model = folder / "text", run = folder / "run", lora = run / "lora", merged = folder / "merged";
  fs::copy(kGolden / "llama/text", model);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy(kGolden / "tokenizers/qwen3" / file, model / file);
  write_plain(folder / "texts.jsonl", "{\"text\": \"Once upon a time there was a dog\"}\n");
  const std::string train =
      "train --device cpu --model " + word(model) + " --dataset " + word(folder / "texts.jsonl") + " --output " +
      word(run) + " --targets lm_head q_proj --rank 2 --alpha 5 --lr 0.05 --sequence-length 32 --save-every 2";
  Outcome outcome = run_wick(train + " --steps 2");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  outcome = run_wick(train + " --steps 4 --resume");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(SafetensorsFile::open(lora / kPeftFile).has("base_model.model.lm_head.lora_A.weight"));
  const std::vector<std::string> targets = read_json(lora / "adapter_config.json").at("target_modules");
  EXPECT_EQ(targets, (std::vector<std::string>{"lm_head", "q_proj"}));

  const auto perplexity = [&](const std::string& flags) {
    const Outcome told = run_wick("eval --device cpu --dataset " + word(folder / "texts.jsonl") + flags);
    EXPECT_EQ(told.code, 0) << told.err;
    return std::stod(told.out.substr(std::string("perplexity ").size()));
  };
  const double with = perplexity(" --model " + word(model) + " --lora " + word(lora));
  EXPECT_LT(with, 0.9 * perplexity(" --model " + word(model)));
  EXPECT_EQ(run_wick("chat --chat-template chatml --max-tokens 1 --model " + word(model) + " --lora " + word(lora),
                     "echo Hi |")
                .code,
            0);
  outcome = run_wick("merge --model " + word(model) + " --lora " + word(lora) + " --output " + word(merged));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NEAR(perplexity(" --model " + word(merged)), with, 1e-4 * with);
}

// An alpha too large for f16.
TEST_F(Adapters, AlphasAreWrittenInF32) {
  const fs::path run = folder / "run";
  const Outcome outcome =
      run_wick("train --device cpu --model " + word(kModel) + " --dataset " +
               word(test::source_dir() / "data/tiny-style") + " --output " + word(run) +
               " --targets 'unet.mid_block.*.to_q' --rank 1 --alpha 100000 --steps 1 --resolution 64");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const SafetensorsFile file = SafetensorsFile::open(run / "lora.safetensors");
  for (const auto& [name, info] : file.tensors()) {
    if (!name.ends_with(".alpha")) {
      EXPECT_EQ(info.dtype_name, "F16") << name;
      continue;
    }
    EXPECT_EQ(info.dtype_name, "F32") << name;
    EXPECT_EQ(file.load(name).item(), 100000) << name;
  }
}

}  // namespace
}  // namespace wick
