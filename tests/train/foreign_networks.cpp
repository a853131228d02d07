// What option files of other trainers train of the small models. The numbers are those of the networks of
// kohya-ss/sd-scripts and of LyCORIS themselves, made for models of these modules, and counts of the modules of
// diffusers' small models that the words of ai-toolkit and OneTrainer choose.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "io/files.h"
#include "source_dir.h"
#include "wick/nn/adapter.h"
#include "wick/pipelines/diffusion.h"
#include "wick/train/foreign/ai_toolkit.h"
#include "wick/train/foreign/kohya.h"
#include "wick/train/foreign/onetrainer.h"
#include "wick/train/trained.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Modules by a pattern of the names that files have.
struct NetworkRow {
  const char* modules;
  int64_t rank;
  double alpha;
  double rate = 1e-4, up = 1;  // and times that, of lora_up
};
struct NetworkCase {
  const char *model, *options;
  size_t count;  // of all modules
  std::vector<NetworkRow> rows;
};

std::ostream& operator<<(std::ostream& out, const NetworkCase& c) { return out << c.model << ' ' << c.options; }

constexpr const char *kFluxLora = "network_module = 'networks.lora_flux'\nnetwork_args = ",
                     *kSd3Lora = "network_module = 'networks.lora_sd3'\nnetwork_args = ",
                     *kSdxlLora = "network_module = 'networks.lora'\nnetwork_args = ",
                     *kOfLycoris = "network_module = 'lycoris.kohya'\nnetwork_args = ";

const std::vector<NetworkCase>& network_cases() {
  static const std::vector<NetworkCase> all = {
      {"tiny-flux", "[]", 32, {{"lora_unet_*", 8, 2}}},
      {"tiny-flux",
       "['train_blocks=double', 'img_mod_dim=0', 'img_attn_dim=4', 'in_dims=2,0,0,0,3']",
       20,
       {{"lora_unet_double_blocks_*_img_attn_*", 4, 2},
        {"lora_unet_double_blocks_*_txt_*", 8, 2},
        {"lora_unet_double_blocks_*_img_mlp_*", 8, 2},
        {"lora_unet_img_in", 2, 2},
        {"lora_unet_txt_in", 3, 2}}},
      {"tiny-flux",
       "['train_double_block_indices=none', 'train_single_block_indices=0,2-3', 'img_mlp_dim=4', 'single_dim=16', "
       "'single_mod_dim=0', 'loraplus_lr_ratio=4']",
       6,
       {{"lora_unet_single_blocks_*_linear*", 16, 2, 1e-4, 4}}},
      {"tiny-sd3",
       "['train_block_indices=0,2-3', 'x_attn_dim=4', 'context_mod_dim=0', 'emb_dims=0,2,3,0,0,5']",
       30,
       {{"lora_unet_joint_blocks_*_x_block_attn*", 4, 2},
        {"lora_unet_joint_blocks_*_x_block_mlp_*", 8, 2},
        {"lora_unet_joint_blocks_*_x_block_adaLN_modulation_1", 8, 2},
        {"lora_unet_joint_blocks_*_context_block_attn_*", 8, 2},
        {"lora_unet_joint_blocks_*_context_block_mlp_*", 8, 2},
        {"lora_unet_t_embedder_*", 2, 2},
        {"lora_unet_x_embedder_proj", 3, 2},
        {"lora_unet_final_layer_linear", 5, 2}}},
      {"tiny",
       "['down_lr_weight=linear', 'mid_lr_weight=1,0.5,1', 'up_lr_weight=0,0,0,1,1,1,1,1,1', "
       "'block_lr_zero_threshold=0.6', 'loraplus_unet_lr_ratio=4']",
       0,
       {{"lora_unet_input_blocks_5_*", 8, 2, 6.25e-5, 4},
        {"lora_unet_input_blocks_7_*", 8, 2, 8.75e-5, 4},
        {"lora_unet_input_blocks_8_*", 8, 2, 1e-4, 4},
        {"lora_unet_output_blocks_3_*", 8, 2, 1e-4, 4},
        {"lora_unet_output_blocks_4_*", 8, 2, 1e-4, 4},
        {"lora_unet_output_blocks_5_*", 8, 2, 1e-4, 4}}},
      {"tiny",
       "['block_dims=1,1,1,1,1,2,0,1,3,4,1,5,1,6,6,6,7,7,7,1,1,1,1', "
       "'block_alphas=1,1,1,1,1,1,1,1,1,1,1,1,1,2,2,2,0,1,1,1,1,1,1', 'up_lr_weight=zeros+0.25']",
       0,
       {{"lora_unet_input_blocks_4_*", 2, 1},
        {"lora_unet_input_blocks_7_*", 3, 1},
        {"lora_unet_input_blocks_8_*", 4, 1},
        {"lora_unet_middle_block_1_*", 5, 1},
        {"lora_unet_output_blocks_0_*", 6, 2, 2.5e-5},
        {"lora_unet_output_blocks_1_*", 6, 2, 2.5e-5},
        {"lora_unet_output_blocks_2_*", 6, 2, 2.5e-5},
        {"lora_unet_output_blocks_3_*", 7, 7, 2.5e-5},
        {"lora_unet_output_blocks_4_*", 7, 1, 2.5e-5},
        {"lora_unet_output_blocks_5_*", 7, 1, 2.5e-5}}},
      {"tiny",
       "['block_dims=1,1,2,2,2,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,0,1', "
       "'conv_block_dims=1,1,3,0,4,3,3,0,3,3,3,3,3,3,3,3,3,3,3,3,3,5,1', 'conv_dim=2', 'conv_alpha=6']",
       0,
       {{"lora_unet_input_blocks_1_0_in_layers_2", 3, 6},
        {"lora_unet_input_blocks_1_0_out_layers_3", 3, 6},
        {"lora_unet_input_blocks_1_0_emb_layers_1", 2, 2},
        {"lora_unet_input_blocks_2_0_emb_layers_1", 2, 2},
        {"lora_unet_input_blocks_3_0_op", 4, 6},
        {"lora_unet_input_blocks_4_0_in_layers_2", 3, 6},
        {"lora_unet_input_blocks_4_0_out_layers_3", 3, 6},
        {"lora_unet_input_blocks_[578]_1_*", 2, 2},
        {"lora_unet_input_blocks_[578]_0_emb_layers_1", 2, 2},
        {"lora_unet_input_blocks_7_0_skip_connection", 2, 2},
        {"lora_unet_input_blocks_[578]_0_in_layers_2", 3, 6},
        {"lora_unet_input_blocks_[578]_0_out_layers_3", 3, 6},
        {"lora_unet_middle_block_1_*", 2, 2},
        {"lora_unet_middle_block_[02]_emb_layers_1", 2, 2},
        {"lora_unet_middle_block_[02]_in_layers_2", 3, 6},
        {"lora_unet_middle_block_[02]_out_layers_3", 3, 6},
        {"lora_unet_output_blocks_[0-7]_1_*", 2, 2},
        {"lora_unet_output_blocks_[0-7]_0_emb_layers_1", 2, 2},
        {"lora_unet_output_blocks_[0-7]_0_skip_connection", 2, 2},
        {"lora_unet_output_blocks_[0-7]_0_in_layers_2", 3, 6},
        {"lora_unet_output_blocks_[0-7]_0_out_layers_3", 3, 6},
        {"lora_unet_output_blocks_[25]_2_conv", 3, 6},
        {"lora_unet_output_blocks_8_0_in_layers_2", 5, 6},
        {"lora_unet_output_blocks_8_0_out_layers_3", 5, 6}}}};
  return all;
}

// Whether a name fits a pattern in which * stands for any characters and [0-7] or [25] for one of some.
bool fits_name(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*')
    return fits_name(pattern.substr(1), name) || (!name.empty() && fits_name(pattern, name.substr(1)));
  if (name.empty()) return false;
  if (pattern[0] != '[') return pattern[0] == name[0] && fits_name(pattern.substr(1), name.substr(1));
  const size_t end = pattern.find(']');
  const std::string_view some = pattern.substr(1, end - 1);
  const bool is_one =
      some.size() == 3 && some[1] == '-' ? some[0] <= name[0] && name[0] <= some[2] : some.find(name[0]) != some.npos;
  return is_one && fits_name(pattern.substr(end + 1), name.substr(1));
}

// A model with the LoRA that settings ask for.
struct TrainedNetwork {
  TrainConfig config;
  std::unique_ptr<Diffusion> model;
  std::unique_ptr<Trained> trained;

  TrainedNetwork(const std::string& name, TrainConfig settings)
      : config(std::move(settings)), model(open_diffusion(test::source_dir() / "models" / name)) {
    LoraFormat lora = model->lora();
    if (config.conv_rank > 0)
      lora.default_targets.insert(lora.default_targets.end(), lora.conv_targets.begin(), lora.conv_targets.end());
    trained = std::make_unique<Trained>(config, lora.names, lora.default_targets, true);
    model->load({.adapter = trained->adapter()}, {DiffusionPart::denoiser});
    trained->adapter()->check_complete({"text_encoder"});
  }
  std::map<std::string, Tensor> tensors() const { return trained->adapter()->tensors(); }
};

TrainedNetwork network_of(const std::string& name, const std::string& options, int rank = 8, int alpha = 2) {
  const TemporaryDirectory folder;
  const fs::path file = folder / "options.toml";
  write_plain(file, fmt::format("train_data_dir = 'pictures'\nresolution = 64\nnetwork_dim = {}\nnetwork_alpha = {}\n"
                                "learning_rate = 1e-4\nnetwork_train_unet_only = true\n{}\n",
                                rank, alpha, options));
  return {name, read_kohya_config(file).config};
}

class KohyaNetworks : public testing::TestWithParam<NetworkCase> {};

INSTANTIATE_TEST_SUITE_P(Of, KohyaNetworks, testing::ValuesIn(network_cases()));

TEST_P(KohyaNetworks, TrainWhatTheScriptsTrain) {
  const NetworkCase& c = GetParam();
  const std::string_view name = c.model;
  const char* module = name == "tiny" ? kSdxlLora : name == "tiny-sd3" ? kSd3Lora : kFluxLora;
  const TrainedNetwork of = network_of(c.model, std::string(module) + c.options);
  std::vector<int> used(c.rows.size());
  const auto tensors = of.tensors();
  size_t modules = 0;
  for (const Parameter& p : of.trained->parameters()) {
    const bool is_up = p.name.ends_with(".lora_up.weight");
    const std::string base = p.name.substr(0, p.name.find('.'));
    SCOPED_TRACE(p.name);
    const auto row = std::ranges::find_if(c.rows, [&](const NetworkRow& r) { return fits_name(r.modules, base); });
    ASSERT_NE(row, c.rows.end()) << "is not trained there";
    ++used[size_t(row - c.rows.begin())];
    modules += is_up ? 1 : 0;
    EXPECT_EQ(p.value.dim(is_up ? p.value.rank() - 1 : 0), row->rank);
    EXPECT_FLOAT_EQ(tensors.at(base + ".alpha").item(), float(row->alpha));
    EXPECT_NEAR(double(p.rate) * of.config.lr.value, row->rate * (is_up ? row->up : 1), 1e-11);
  }
  for (size_t i = 0; i < used.size(); ++i) EXPECT_GT(used[i], 0) << c.rows[i].modules;
  if (c.count > 0) {
    EXPECT_EQ(modules, c.count);
  }
}

// LoRAs of their own on q, k and v, and on the feed-forward's part of FLUX's linear1, under OneTrainer's names.
TEST(KohyaNetwork, SplitsWhereItIsToldTo) {
  const TrainedNetwork flux = network_of("tiny-flux", std::string(kFluxLora) + "['split_qkv=True']");
  const auto tensors = flux.tensors();
  const auto shape = [&](const std::string& key) { return tensors.at(key).shape(); };
  for (const char* part : {"to_q", "to_k", "to_v"}) {
    const std::string base = fmt::format("lora_transformer_transformer_blocks_1_attn_{}", part);
    EXPECT_EQ(shape(base + ".lora_down.weight"), (Shape{8, 128})) << part;
    EXPECT_EQ(shape(base + ".lora_up.weight"), (Shape{128, 8})) << part;
    EXPECT_EQ(tensors.at(base + ".alpha").item(), 2) << part;
  }
  EXPECT_EQ(shape("lora_transformer_single_transformer_blocks_3_proj_mlp.lora_up.weight"), (Shape{512, 8}));
  // 2 blocks of 2 x (modulation, q, k, v, projection, two of the feed-forward), 4 of 6.
  EXPECT_EQ(tensors.size(), size_t{3 * (2 * 2 * 7 + 4 * 6)});
  const TrainedNetwork whole = network_of("tiny-flux", std::string(kFluxLora) + "['split_qkv=False']");
  EXPECT_TRUE(whole.tensors().contains("lora_unet_double_blocks_1_img_attn_qkv.lora_up.weight"));
}

struct LycorisRow {
  const char *arguments, *told;
};

// Settings that LyCORIS' arguments give, of a file for SDXL with a rank of 8 and an alpha of 2.
constexpr LycorisRow kLycorisRows[] = {
    {"['algo=lora']", "lora conv 8:2"},
    {"['algo=locon', 'conv_dim=4', 'conv_alpha=1']", "lora conv 4:1"},
    {"['preset=attn-mlp']", "lora"},
    {"['preset=unet-transformer-only', 'algo=loha']", "loha"},
    {"['dora_wd=True']", "dora conv 8:2 on-output"},
    {"['dora_wd=True', 'wd_on_output=False', 'algo=loha']", "dora-loha conv 8:2"},
    {"['dora_wd=True', 'bypass_mode=True']", "lora conv 8:2"},
    {"['algo=lokr', 'factor=-1', 'dora_wd=false']", "lokr conv 8:2"},
    {"['algo=lokr', 'factor=4', 'decompose_both=False']", "lokr conv 8:2 factor 4 both"},
    {"['algo=lokr', 'full_matrix=True', 'unbalanced_factorization=True']", "lokr conv 8:2 full unbalanced"},
    {"['use_tucker=False', 'rs_lora=True']", "lora conv 8:2 rslora"}};

std::string lycoris_settings(const TrainConfig& c) {
  std::string all(name_of(c.adapter));
  if (c.conv_rank > 0) all += fmt::format(" conv {}:{}", c.conv_rank, c.conv_alpha);
  if (c.dora_on_output) all += " on-output";
  if (c.lokr_factor > 0) all += fmt::format(" factor {}", c.lokr_factor);
  if (c.lokr_full) all += " full";
  if (c.lokr_decompose_both) all += " both";
  if (c.lokr_unbalanced) all += " unbalanced";
  if (c.rslora) all += " rslora";
  return all;
}

TEST(KohyaNetwork, ReadsArgumentsAsLycorisDoes) {
  for (const auto& [arguments, told] : kLycorisRows) {
    SCOPED_TRACE(arguments);
    const TrainedNetwork of = network_of("tiny", std::string(kOfLycoris) + arguments);
    EXPECT_EQ(lycoris_settings(of.config), told);
  }
}

struct FactorsRow {
  const char* arguments;
  double alpha;
  std::map<std::string, Shape> shapes;
};

// The shapes that LyCORIS gives the factors of FLUX's qkv, 384 x 128 in the small model, at a rank of 2.
TEST(KohyaNetwork, HasLycorisFactors) {
  const std::vector<FactorsRow> rows = {
      {"['algo=lokr', 'decompose_both=False']",
       1,
       {{"lokr_w1_a", {16, 2}}, {"lokr_w1_b", {2, 8}}, {"lokr_w2_a", {24, 2}}, {"lokr_w2_b", {2, 16}}}},
      {"['algo=lokr', 'factor=4']", 1, {{"lokr_w1", {4, 4}}, {"lokr_w2_a", {96, 2}}, {"lokr_w2_b", {2, 32}}}},
      {"['algo=lokr', 'full_matrix=True']", 2, {{"lokr_w1", {16, 8}}, {"lokr_w2", {24, 16}}}},
      {"['algo=lokr', 'unbalanced_factorization=True', 'factor=2']",
       1,
       {{"lokr_w1", {192, 2}}, {"lokr_w2_a", {2, 2}}, {"lokr_w2_b", {2, 64}}}},
      {"['algo=loha', 'dora_wd=True']",
       1,
       {{"hada_w1_a", {384, 2}},
        {"hada_w1_b", {2, 128}},
        {"hada_w2_a", {384, 2}},
        {"hada_w2_b", {2, 128}},
        {"dora_scale", {384, 1}}}},
      {"['dora_wd=True', 'wd_on_output=False']",
       1,
       {{"lora_down.weight", {2, 128}}, {"lora_up.weight", {384, 2}}, {"dora_scale", {1, 128}}}}};
  const std::string module = "lora_unet_double_blocks_0_img_attn_qkv.";
  for (const auto& [arguments, alpha, shapes] : rows) {
    SCOPED_TRACE(arguments);
    const TrainedNetwork of =
        network_of("tiny-flux", std::string(kOfLycoris) + arguments + "\nae = 'ae.safetensors'", 2, 1);
    const auto tensors = of.tensors();
    std::map<std::string, Shape> found;
    for (const auto& [key, value] : tensors)
      if (key.starts_with(module) && !key.ends_with(".alpha")) found[key.substr(module.size())] = value.shape();
    EXPECT_EQ(found, shapes);
    const bool has_scale = !shapes.contains("lokr_w1") || !shapes.contains("lokr_w2");  // else it is 1
    EXPECT_TRUE(!has_scale || tensors.at(module + "alpha").item() == float(alpha));
  }
}

// Lines in terms of the option file.
TEST(KohyaNetwork, TellsWhatItDoesNotTrain) {
  const TemporaryDirectory folder;
  const fs::path file = folder / "options.toml";
  const std::pair<const char*, std::vector<std::string_view>> rows[] = {
      {"network_module = 'networks.lora_fa'", {"network_module", "LoRA-FA"}},
      {"network_module = 'networks.dylora'", {"network_module", "DyLoRA"}},
      {"network_module = 'networks.oft'", {"network_module", "OFT"}},
      {"network_module = 'networks.lora'\nae = 'ae.safetensors'", {"network_module", "FLUX", "networks.lora_flux"}},
      {"network_module = 'lycoris.kohya'\nnetwork_args = ['algo=ia3']", {"network_args", "algo=ia3", "no IA3"}},
      {"network_module = 'lycoris.kohya'\nnetwork_args = ['use_tucker=True']", {"network_args", "use_tucker"}},
      {"network_module = 'lycoris.kohya'\nnetwork_args = ['preset=mine.toml']",
       {"network_args", "preset", "mine.toml"}},
      {"network_args = ['block_dims=1,2']", {"network_args", "block_dims", "23 numbers", "found 2"}},
      {"network_args = ['down_lr_weight=cubic']", {"network_args", "down_lr_weight", "cosine", "cubic"}},
      {"network_args = ['mid_lr_weight=1,x,1']", {"network_args", "mid_lr_weight", "a number", "x"}},
      {"network_module = 'networks.lora_flux'\nnetwork_args = ['train_blocks=some']", {"network_args", "train_blocks"}},
      {"network_module = 'networks.lora_flux'\nnetwork_args = ['in_dims=1,2']",
       {"network_args", "in_dims", "5 numbers"}},
      {"network_module = 'networks.lora_flux'\nnetwork_args = ['train_single_block_indices=5-38']",
       {"network_args", "train_single_block_indices", "0 to 37"}},
      {"network_module = 'networks.lora_flux'\nnetwork_args = ['single_dim=5000']",
       {"network_args", "single_dim", "4096"}},
      {"optimizer_type = 'Prodigy'\nnetwork_args = ['loraplus_lr_ratio=4']", {"network_args", "Prodigy"}}};
  for (const auto& [options, parts] : rows) {
    SCOPED_TRACE(options);
    write_plain(file, std::string("train_data_dir = 'a'\nresolution = 64\nnetwork_train_unet_only = true\n") + options);
    for (const std::string_view part : parts) expect_error([&] { read_kohya_config(file); }, {part});
    expect_error([&] { read_kohya_config(file); }, {file.string()});
  }
}

// What a file for OneTrainer or ai-toolkit trains: its keys, the modules that it counts, and the adapter.
struct WordsRow {
  const char *model, *keys;
  size_t count;
  std::string_view told;
};

std::string told_of(const TrainConfig& c) {
  std::string all(name_of(c.adapter));
  if (c.dora_on_output) all += " on-output";
  if (c.lokr_factor > 0) all += fmt::format(" factor {}", c.lokr_factor);
  if (c.lokr_full) all += " full";
  if (c.lokr_decompose_both) all += " both";
  if (c.split_qkv) all += " split";
  return fmt::format("{} {}:{}", all, c.rank.value, c.alpha.value);
}

size_t module_count(const TrainedNetwork& network) {
  size_t count = 0;
  for (const auto& [key, value] : network.tensors()) count += key.ends_with(".alpha") ? 1 : 0;
  return count;
}

TEST(OneTrainerNetwork, TrainsTheModulesOfItsWords) {
  const WordsRow rows[] = {
      {"tiny-flux", R"("layer_filter": "")", 62, "lora split 16:1"},
      {"tiny-flux", R"("layer_filter_preset": "blocks")", 52, "lora split 16:1"},
      {"tiny-flux", R"("layer_filter": "attn, ff.net,proj_mlp")", 36, "lora split 16:1"},
      {"tiny-flux", R"("layer_filter_preset": "attn-only", "lora_rank": 4, "lora_alpha": 2.0)", 28, "lora split 4:2"},
      {"tiny-flux", R"("layer_filter": "single_transformer_blocks.3.proj_out")", 1, "lora split 16:1"},
      {"tiny-flux", R"("layer_filter": "transformer_block", "output_model_format": "KOHYA_LORA")", 32, "lora 16:1"},
      {"tiny-sd3", R"("layer_filter": "attn")", 39, "lora split 16:1"},
      {"tiny-sd3", R"("layer_filter": "", "lora_decompose": true)", 69, "dora split 16:1"},
      {"tiny", R"("layer_filter": "attentions", "peft_type": "LOHA")", 192, "loha 16:1"},
      {"tiny", R"("layer_filter": "attn", "lora_decompose": true, "lora_decompose_output_axis": true)", 136,
       "dora on-output 16:1"},
      {"tiny", R"("layer_filter": "", "peft_type": "LOKR", "lokr_dim": 2, "lokr_full_matrix": true)", 264,
       "lokr full 2:1"},
      {"tiny",
       R"("layer_filter": "attn", "peft_type": "LOKR", "lokr_decompose_both": true, "lokr_weight_decompose": true,
         "lokr_decompose_factor": 4)",
       136, "dora-lokr on-output factor 4 both 16:1"}};
  const TemporaryDirectory folder;
  const fs::path file = folder / "settings.json";
  for (const auto& [model, keys, count, told] : rows) {
    SCOPED_TRACE(keys);
    const std::string_view name = model;
    const char* type = name == "tiny"        ? "STABLE_DIFFUSION_XL_10_BASE"
                       : name == "tiny-flux" ? "FLUX_DEV_1"
                                             : "STABLE_DIFFUSION_35";
    write_plain(file, fmt::format(R"({{"training_method": "LORA", "model_type": "{}", "base_model_name": "m",
                                      "concepts": [{{"path": "foxes"}}], "text_encoder": {{"train": false}},
                                      "text_encoder_2": {{"train": false}}, "text_encoder_3": {{"train": false}}, {}}})",
                                  type, keys));
    const ForeignConfig read = explain_onetrainer(file);
    read.check();
    EXPECT_EQ(told_of(read.config), told);
    EXPECT_EQ(module_count({model, read.config}), count);
  }
  write_plain(file, R"({"training_method": "LORA", "model_type": "FLUX_DEV_1", "base_model_name": "m",
                        "concepts": [{"path": "foxes"}], "layer_filter": "mlp"})");
  expect_error([&] { explain_onetrainer(file).check(); }, {"layer_filter", "mlp", "--targets"});
}

TEST(AiToolkitNetwork, TrainsTheModulesOfItsWords) {
  const WordsRow rows[] = {
      {"tiny-flux", "type: lora, linear: 8", 52, "lora split 8:8"},
      {"tiny-flux", "type: lora, linear: 8, transformer_only: false", 62, "lora split 8:8"},
      {"tiny-flux", "type: lora, linear: 8, network_kwargs: {only_if_contains: [to_q, proj_out]}", 10,
       "lora split 8:8"},
      {"tiny-flux",
       "type: lora, linear: 8, network_kwargs: {only_if_contains: [transformer.single_transformer_blocks.2.proj_out]}",
       1, "lora split 8:8"},
      {"tiny-flux", "type: lora, linear: 8, network_kwargs: {ignore_if_contains: [norm]}", 44, "lora split 8:8"},
      {"tiny-flux", "type: lokr, linear: 8", 52, "lokr full split 8:8"},
      {"tiny-flux", "type: lokr, linear: 2, lokr_full_rank: false, lokr_factor: 8", 52, "lokr factor 8 split 2:2"},
      {"tiny-sd3", "type: dora, linear: 4", 61, "dora on-output split 4:4"}};
  const TemporaryDirectory folder;
  const fs::path file = folder / "job.yaml";
  for (const auto& [model, keys, count, told] : rows) {
    SCOPED_TRACE(keys);
    const char* kind = std::string_view(model) == "tiny-flux" ? "flux" : "sd3";
    write_plain(file, fmt::format("job: extension\nconfig:\n  name: fox\n  process:\n    - type: sd_trainer\n"
                                  "      network: {{{}}}\n      datasets: [{{folder_path: foxes}}]\n"
                                  "      train: {{noise_scheduler: flowmatch}}\n"
                                  "      model: {{name_or_path: m, arch: {}}}\n",
                                  keys, kind));
    const ForeignConfig read = explain_ai_toolkit(file);
    read.check();
    EXPECT_EQ(told_of(read.config), told);
    EXPECT_EQ(module_count({model, read.config}), count);
  }
}

TEST(ForeignModel, IsOfTheFilesFamily) {
  const TemporaryDirectory folder;
  const fs::path file = folder / "options.toml";
  write_plain(file, "train_data_dir = 'a'\nresolution = 64\nnetwork_module = 'networks.lora_flux'\n");
  const ForeignConfig read = read_kohya_config(file);
  expect_error([&] { read.check_model(test::source_dir() / "models/tiny"); },
               {file.string(), "network_module is for FLUX", "tiny is SDXL"});
  expect_error([&] { read.check_model(test::source_dir() / "models/tiny-sd3"); }, {"network_module", "is SD3"});
  read.check_model(test::source_dir() / "models/tiny-flux");
}

}  // namespace
}  // namespace wick
