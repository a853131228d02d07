#include "wick/train/foreign/kohya_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>
#include <optional>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/table.h"

namespace wick {
namespace {

using Family = NetworkFamily;
using Use = NetworkArgument::Use;

constexpr KohyaNetwork kNetworks[] = {{"networks.lora", Family::lora},
                                      {"networks.lora_flux", Family::lora_flux},
                                      {"networks.lora_sd3", Family::lora_sd3},
                                      {"networks.loha", Family::loha_lokr, AdapterKind::loha},
                                      {"networks.lokr", Family::loha_lokr, AdapterKind::lokr},
                                      {"lycoris.kohya", Family::lycoris}};

// Networks of kinds that Wick does not train, with its name for each.
constexpr std::pair<std::string_view, std::string_view> kUntrainedNetworks[] = {
    {"networks.dylora", "DyLoRA"},
    {"networks.lora_fa", "LoRA-FA"},
    {"networks.oft", "OFT"},
    {"networks.oft_flux", "OFT"},
    {"networks.control_net_lllite", "ControlNet-LLLite"}};

constexpr int kLora = int(Family::lora), kFluxLora = int(Family::lora_flux), kSd3Lora = int(Family::lora_sd3),
              kLohaLokr = int(Family::loha_lokr), kLycoris = int(Family::lycoris), kMusubi = int(Family::musubi_flux),
              kFlowLoras = kFluxLora + kSd3Lora, kScripts = kLora + kFlowLoras + kLohaLokr,
              kAllNetworks = kScripts + kLycoris;
constexpr std::string_view kPatterns = "--rank and --lr take others for patterns of modules";

constexpr NetworkArgument kArguments[] = {
    {"algo", kLycoris},
    {"block_alphas", kLora},
    {"block_dims", kLora},
    {"block_lr_zero_threshold", kLora},
    {"block_size", kLycoris, Use::idle, "is for DyLoRA"},
    {"bypass_mode", kLycoris},
    {"constraint", kLycoris, Use::idle, "is for OFT"},
    {"context_attn_dim", kSd3Lora},
    {"context_mlp_dim", kSd3Lora},
    {"context_mod_dim", kSd3Lora},
    {"conv_alpha", kAllNetworks},
    {"conv_block_alphas", kLora},
    {"conv_block_dims", kLora},
    {"conv_dim", kAllNetworks},
    {"decompose_both", kLycoris},
    {"dora_wd", kLycoris},
    {"down_lr_weight", kLora},
    {"dropout", kLycoris},
    {"emb_dims", kSd3Lora},
    {"exclude_patterns", kLohaLokr + kMusubi, Use::refused, "--targets excludes modules"},
    {"factor", kLohaLokr + kLycoris + kMusubi},
    {"full_matrix", kLycoris},
    {"ggpo_beta", kFluxLora, Use::refused},
    {"ggpo_sigma", kFluxLora, Use::refused},
    {"img_attn_dim", kFluxLora},
    {"img_mlp_dim", kFluxLora},
    {"img_mod_dim", kFluxLora},
    {"in_dims", kFluxLora},
    {"include_patterns", kLohaLokr + kMusubi, Use::refused, "--targets names modules"},
    {"loraplus_lr_ratio", kAllNetworks + kMusubi},
    {"loraplus_text_encoder_lr_ratio", kAllNetworks},
    {"loraplus_unet_lr_ratio", kAllNetworks},
    {"mid_lr_weight", kLora},
    {"module_dropout", kAllNetworks + kMusubi, Use::setting, "module_dropout"},
    {"network_reg_dims", kFluxLora + kLohaLokr, Use::refused, kPatterns},
    {"network_reg_lrs", kFluxLora + kLohaLokr, Use::refused, kPatterns},
    {"preset", kLycoris},
    {"rank_dropout", kAllNetworks + kMusubi, Use::setting, "rank_dropout"},
    {"rescaled", kLycoris, Use::idle, "is for OFT"},
    {"rs_lora", kLycoris},
    {"single_dim", kFluxLora},
    {"single_mod_dim", kFluxLora},
    {"split_qkv", kFlowLoras},
    {"train_block_indices", kSd3Lora},
    {"train_blocks", kFluxLora},
    {"train_double_block_indices", kFluxLora},
    {"train_norm", kLycoris, Use::refused, "", "false"},
    {"train_single_block_indices", kFluxLora},
    {"train_t5xxl", kFlowLoras + kLycoris},
    {"txt_attn_dim", kFluxLora},
    {"txt_mlp_dim", kFluxLora},
    {"txt_mod_dim", kFluxLora},
    {"unbalanced_factorization", kLycoris},
    {"up_lr_weight", kLora},
    {"use_conv_cp", kLycoris},
    {"use_cp", kLycoris},
    {"use_scalar", kLycoris, Use::refused, "", "false"},
    {"use_tucker", kLohaLokr + kLycoris},
    {"verbose", kScripts + kMusubi, Use::idle, "tells more"},
    {"wd_on_output", kLycoris},
    {"x_attn_dim", kSd3Lora},
    {"x_mlp_dim", kSd3Lora},
    {"x_mod_dim", kSd3Lora}};

std::string in_small_letters(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
  return text;
}

// The parts of "a, b" or "[a, b]", without spaces.
std::vector<std::string> parts_of(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '[' || c == ']'; });
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

double argument_number(std::string_view argument, const std::string& text) {
  const auto value = number_of(text);
  check_usage(value.has_value(), "{}: expected a number, found {}", argument, quote(text));
  return *value;
}

int64_t rank_in(std::string_view argument, double value) {
  check_usage(value >= 0 && value <= 4096 && value == std::floor(value),
              "{}: expected ranks from 1 to 4096, or 0 to leave modules out, found {}", argument, value);
  return int64_t(value);
}

}  // namespace

std::string_view name_of_model(KohyaModel model) {
  return model == KohyaModel::sdxl ? "SDXL" : model == KohyaModel::sd3 ? "SD3" : "FLUX";
}

const KohyaNetwork* find_kohya_network(std::string_view module) {
  for (const auto& [untrained, kind] : kUntrainedNetworks)
    check_usage(untrained != module,
                "Wick trains no {}; expected networks.lora, lora_sd3, lora_flux, loha or lokr, or "
                "lycoris.kohya, found {}",
                kind, quote(module));
  const auto* found = std::ranges::find(kNetworks, module, &KohyaNetwork::module);
  return found == std::end(kNetworks) ? nullptr : found;
}

const NetworkArgument* find_network_argument(std::string_view name) {
  const auto* found = std::ranges::find(kArguments, name, &NetworkArgument::name);
  return found == std::end(kArguments) ? nullptr : found;
}

bool NetworkArguments::has(std::string_view name) const {
  const auto found = values_.find(name);
  return found != values_.end() && !found->second.empty() && in_small_letters(found->second) != "none";
}

bool NetworkArguments::names_none(std::string_view name) const { return values_.contains(name) && !has(name); }

std::string NetworkArguments::text(std::string_view name, std::string_view otherwise) const {
  return has(name) ? in_small_letters(values_.find(name)->second) : std::string(otherwise);
}

double NetworkArguments::number(std::string_view name, double otherwise) const {
  return has(name) ? argument_number(name, text(name, "")) : otherwise;
}

std::vector<double> NetworkArguments::numbers(std::string_view name, size_t count) const {
  const std::vector<std::string> parts = parts_of(text(name, ""));
  check_usage(parts.size() == count, "{}: expected {} numbers, found {}", name, count, parts.size());
  std::vector<double> values;
  for (const std::string& part : parts) values.push_back(argument_number(name, part));
  return values;
}

bool NetworkArguments::is_true(std::string_view name) const {
  return has(name) && values_.find(name)->second == "True";
}

bool NetworkArguments::is_not_false(std::string_view name, bool otherwise) const {
  return has(name) ? text(name, "") != "false" : otherwise;
}

namespace {

// What a kind of modules gets: its patterns, and a rank that an argument may change.
struct KindOfModules {
  std::string_view argument;
  std::vector<std::string> patterns;
};

// Rank 0 leaves the kind out.
void give_rank(NetworkModules& modules, std::string_view argument, double value,
               const std::vector<std::string>& patterns) {
  const int64_t rank = rank_in(argument, value);
  for (const std::string& pattern : patterns)
    if (rank == 0)
      modules.targets.push_back("-" + pattern);
    else if (rank != modules.sizes.rank)
      modules.ranks.push_back({pattern, rank});
}

void give_ranks(NetworkModules& modules, const NetworkArguments& arguments, const std::vector<KindOfModules>& kinds) {
  for (const auto& [argument, patterns] : kinds)
    if (arguments.has(argument)) give_rank(modules, argument, arguments.number(argument, 0), patterns);
}

// Modules outside the blocks, which are trained where they have a rank.
void add_outside(NetworkModules& modules, const NetworkArguments& arguments, std::string_view argument,
                 const std::vector<std::string>& patterns) {
  if (!arguments.has(argument)) return;
  const std::vector<double> ranks = arguments.numbers(argument, patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (rank_in(argument, ranks[i]) == 0) continue;
    modules.targets.push_back(patterns[i]);
    give_rank(modules, argument, ranks[i], {patterns[i]});
  }
}

// "all", "none", or numbers and ranges of them as "0-3,7": the patterns of those blocks.
std::vector<std::string> blocks_of(const NetworkArguments& arguments, std::string_view argument,
                                   std::string_view blocks, int count) {
  const std::string chosen = arguments.text(argument, "all");
  if (chosen == "all") return {fmt::format("transformer.{}.*", blocks)};
  std::vector<std::string> patterns;
  std::vector<bool> is_chosen(size_t(count), false);
  const auto index_of = [&](const std::string& text) {
    const double index = argument_number(argument, text);
    check_usage(index >= 0 && index < count && index == std::floor(index),
                "{}: expected numbers of blocks from 0 to {}, found {}", argument, count - 1, text);
    return size_t(index);
  };
  for (const std::string& part : parts_of(chosen)) {
    const size_t dash = part.find('-');
    const size_t first = index_of(part.substr(0, dash)),
                 last = dash == part.npos ? first : index_of(part.substr(dash + 1));
    check_usage(first <= last, "{}: expected FIRST-LAST, found {}", argument, part);
    std::fill(is_chosen.begin() + std::ptrdiff_t(first), is_chosen.begin() + std::ptrdiff_t(last) + 1, true);
  }
  for (size_t i = 0; i < is_chosen.size(); ++i)
    if (is_chosen[i]) patterns.push_back(fmt::format("transformer.{}.{}.*", blocks, i));
  return patterns;
}

// What a network gives to types of modules that it does not train must not be a pattern: it would fit nothing.
NetworkModules flux_modules(const NetworkArguments& arguments, const NetworkSizes& sizes) {
  constexpr int kDouble = 19, kSingle = 38;
  const std::string which = arguments.text("train_blocks", "all");
  check_usage(which == "all" || which == "double" || which == "single",
              "train_blocks: expected all, double or single, found {}", quote(which));
  NetworkModules modules{.sizes = sizes};
  const auto add = [&](const char* indices, const char* blocks, int count, const std::vector<KindOfModules>& kinds) {
    if (arguments.names_none(indices)) return;
    const std::vector<std::string> chosen = blocks_of(arguments, indices, blocks, count);
    modules.targets.insert(modules.targets.end(), chosen.begin(), chosen.end());
    give_ranks(modules, arguments, kinds);
  };
  const auto in_double = [](const char* name) {
    return std::vector<std::string>{fmt::format("transformer.double_blocks.*.{}.*", name)};
  };
  if (which != "single")
    add("train_double_block_indices", "double_blocks", kDouble,
        {{"img_attn_dim", in_double("img_attn")},
         {"txt_attn_dim", in_double("txt_attn")},
         {"img_mlp_dim", in_double("img_mlp")},
         {"txt_mlp_dim", in_double("txt_mlp")},
         {"img_mod_dim", in_double("img_mod")},
         {"txt_mod_dim", in_double("txt_mod")}});
  if (which != "double")
    add("train_single_block_indices", "single_blocks", kSingle,
        {{"single_dim", {"transformer.single_blocks.*.linear*"}},
         {"single_mod_dim", {"transformer.single_blocks.*.modulation.*"}}});
  add_outside(modules, arguments, "in_dims",
              {"transformer.img_in", "transformer.time_in.*", "transformer.vector_in.*", "transformer.guidance_in.*",
               "transformer.txt_in"});
  return modules;
}

NetworkModules sd3_modules(const NetworkArguments& arguments, const NetworkSizes& sizes) {
  constexpr int kMost = 999;
  NetworkModules modules{.sizes = sizes};
  if (!arguments.names_none("train_block_indices")) {
    modules.targets = blocks_of(arguments, "train_block_indices", "joint_blocks", kMost);
    const auto in_blocks = [](const char* name) {
      return std::vector<std::string>{fmt::format("transformer.joint_blocks.*.{}.*", name)};
    };
    give_ranks(modules, arguments,
               {{"context_attn_dim", in_blocks("context_block.attn")},
                {"context_mlp_dim", in_blocks("context_block.mlp")},
                {"context_mod_dim", in_blocks("context_block.adaLN_modulation")},
                {"x_attn_dim", {"transformer.joint_blocks.*.x_block.attn*"}},
                {"x_mlp_dim", in_blocks("x_block.mlp")},
                {"x_mod_dim", in_blocks("x_block.adaLN_modulation")}});
  }
  add_outside(
      modules, arguments, "emb_dims",
      {"transformer.context_embedder", "transformer.t_embedder.*", "transformer.x_embedder.*",
       "transformer.y_embedder.*", "transformer.final_layer.adaLN_modulation.*", "transformer.final_layer.linear"});
  return modules;
}

const std::vector<std::string>& convolutional_targets() {
  static const std::vector<std::string> all = {"unet.*.attentions.*", "unet.*.resnets.*", "unet.*.downsamplers.*",
                                               "unet.*.upsamplers.*"};
  return all;
}

// One of the 23 blocks that the scripts count in SDXL's UNet, as far as it has layers to train: the first is of time
// and the last the output, which have none; 1 to 9 are input_blocks, 10 to 12 the middle, 13 to 21 output_blocks.
struct SdxlBlock {
  static constexpr size_t kBlocks = 23, kDown = 1, kMiddle = 10, kUp = 13, kPart = 9;

  std::string attention, resnet, sampler;  // diffusers' names; empty where it has none

  static SdxlBlock at(size_t index) {
    const auto name = [](const char* format, size_t level, size_t layer) {
      return fmt::format(fmt::runtime(format), level, layer);
    };
    if (index == 0 || index + 1 == kBlocks) return {};
    if (index < kMiddle) {
      const size_t block = index - kDown;
      if (block == 0) return {};
      if (block % 3 == 0) return {"", "", name("unet.down_blocks.{}.downsamplers.{}", block / 3 - 1, 0)};
      const size_t level = block / 3, layer = block % 3 - 1;
      return {level > 0 ? name("unet.down_blocks.{}.attentions.{}", level, layer) : "",
              name("unet.down_blocks.{}.resnets.{}", level, layer), ""};
    }
    if (index < kUp) {
      const size_t block = index - kMiddle;
      if (block == 1) return {"unet.mid_block.attentions.0", "", ""};
      return {"", block == 0 ? "unet.mid_block.resnets.0" : "unet.mid_block.resnets.1", ""};
    }
    const size_t level = (index - kUp) / 3, layer = (index - kUp) % 3;
    return {level < 2 ? name("unet.up_blocks.{}.attentions.{}", level, layer) : "",
            name("unet.up_blocks.{}.resnets.{}", level, layer),
            level < 2 && layer == 2 ? name("unet.up_blocks.{}.upsamplers.{}", level, 0) : ""};
  }

  // Modules of linears and convolutions of a pixel, and other convolutions behind them.
  std::vector<std::string> linears(bool with_resnet) const {
    std::vector<std::string> all;
    if (!attention.empty()) all.push_back(attention + ".*");
    if (with_resnet && !resnet.empty()) all.push_back(resnet + ".*");
    return all;
  }
  std::vector<std::string> convolutions() const {
    std::vector<std::string> all;
    if (!resnet.empty()) all = {resnet + ".conv1", resnet + ".conv2"};
    if (!sampler.empty()) all.push_back(sampler + ".*");
    return all;
  }
};

// The nine shares of a half by a preset's name: "cosine+.25".
std::vector<double> shares_by_name(std::string_view argument, const std::string& text) {
  constexpr size_t kCount = SdxlBlock::kPart;
  const size_t plus = std::min(text.find('+'), text.size());
  const std::string name = text.substr(0, plus);
  const double base = plus < text.size() ? argument_number(argument, text.substr(plus + 1)) : 0;
  check_usage(name == "cosine" || name == "sine" || name == "linear" || name == "reverse_linear" || name == "zeros",
              "{}: expected numbers or cosine, sine, linear, reverse_linear or zeros, found {}", argument, quote(name));
  std::vector<double> shares(kCount, base);
  for (size_t i = 0; i < kCount && name != "zeros"; ++i) {
    const bool falls = name == "cosine" || name == "reverse_linear";
    const double x = double(falls ? kCount - 1 - i : i) / double(kCount - 1);
    shares[i] += name.ends_with("linear") ? x : std::sin(std::numbers::pi * x / 2);
  }
  return shares;
}

// The shares of a part's blocks: those that are missing are 1, and those up to the threshold are 0.
std::vector<double> shares_of(const NetworkArguments& arguments, std::string_view argument, size_t count) {
  std::vector<double> shares;
  const std::string text = arguments.text(argument, "");
  if (!arguments.has(argument)) return std::vector<double>(count, 1);
  if (argument != "mid_lr_weight" && text.find(',') == text.npos) {
    shares = shares_by_name(argument, text);
  } else {
    for (const std::string& part : parts_of(text)) shares.push_back(part.empty() ? 0 : argument_number(argument, part));
  }
  shares.resize(count, 1);
  const double threshold = arguments.number("block_lr_zero_threshold", 0);
  for (double& share : shares)
    if (!(share > threshold)) share = 0;
  return shares;
}

std::vector<double> shares_of_blocks(const NetworkArguments& arguments) {
  std::vector<double> all = {1};
  for (const auto& [argument, count] : {std::pair<const char*, size_t>{"down_lr_weight", SdxlBlock::kPart},
                                        {"mid_lr_weight", SdxlBlock::kUp - SdxlBlock::kMiddle},
                                        {"up_lr_weight", SdxlBlock::kPart}}) {
    const std::vector<double> shares = shares_of(arguments, argument, count);
    all.insert(all.end(), shares.begin(), shares.end());
  }
  all.push_back(1);
  return all;
}

std::vector<double> numbers_or(const NetworkArguments& arguments, std::string_view argument, double otherwise) {
  return arguments.has(argument) ? arguments.numbers(argument, SdxlBlock::kBlocks)
                                 : std::vector<double>(SdxlBlock::kBlocks, otherwise);
}

// A rank and an alpha for patterns of modules, where they are others than those of all.
void give_sizes(NetworkModules& modules, const std::vector<std::string>& patterns, int64_t rank, double alpha,
                const std::pair<int64_t, double>& of_all) {
  for (const std::string& pattern : patterns) {
    if (rank != of_all.first) modules.ranks.push_back({pattern, rank});
    if (alpha != of_all.second) modules.alphas.push_back({pattern, alpha});
  }
}

// The sizes of blocks, in the order of their numbers, of linears and of convolutions of more than one pixel.
struct SizesOfBlocks {
  std::vector<double> ranks, alphas, conv_ranks, conv_alphas;
  bool has_convolutions;
};

void add_block(NetworkModules& modules, const SizesOfBlocks& sizes, size_t index, double share) {
  const SdxlBlock block = SdxlBlock::at(index);
  const std::vector<std::string> linears = block.linears(sizes.has_convolutions), convolutions = block.convolutions();
  const int64_t rank = share == 0 ? 0 : rank_in("block_dims", sizes.ranks[index]),
                conv_rank =
                    share == 0 || !sizes.has_convolutions ? 0 : rank_in("conv_block_dims", sizes.conv_ranks[index]);
  const std::pair<int64_t, double> of_all{modules.sizes.rank, modules.sizes.alpha},
      of_convolutions{modules.sizes.conv_rank, modules.sizes.conv_alpha};
  if (rank > 0) {
    give_sizes(modules, linears, rank, sizes.alphas[index], of_all);
  } else {
    for (const std::string& pattern : linears) modules.targets.push_back("-" + pattern);
  }
  if (!sizes.has_convolutions) {
    if (share != 1 && rank > 0)
      for (const std::string& pattern : linears) modules.shares.push_back({pattern, share});
    return;
  }
  // A resnet's pattern fits its convolutions too, whose own comes behind it.
  const bool is_overridden = rank > 0 && (rank != of_all.first || sizes.alphas[index] != of_all.second);
  for (const std::string& pattern : convolutions) {
    if (conv_rank == 0 && (rank > 0 || pattern.ends_with(".*"))) modules.targets.push_back("-" + pattern);
    if (conv_rank > 0 && rank == 0 && !pattern.ends_with(".*")) modules.targets.push_back(pattern);
  }
  if (conv_rank > 0)
    give_sizes(modules, convolutions, conv_rank, sizes.conv_alphas[index],
               is_overridden ? std::pair<int64_t, double>{-1, -1} : of_convolutions);
  if (share == 1 || share == 0) return;
  for (const std::string& pattern : rank > 0 ? linears : std::vector<std::string>())
    modules.shares.push_back({pattern, share});
  for (const std::string& pattern : conv_rank > 0 ? convolutions : std::vector<std::string>())
    modules.shares.push_back({pattern, share});
}

NetworkModules sdxl_modules(const NetworkArguments& arguments, const NetworkSizes& given) {
  NetworkModules modules{.targets = {"unet.*.attentions.*"}, .sizes = given};
  const bool has_shares =
      arguments.has("down_lr_weight") || arguments.has("mid_lr_weight") || arguments.has("up_lr_weight");
  const bool by_blocks = has_shares || arguments.has("block_dims");
  SizesOfBlocks sizes{.has_convolutions = given.conv_rank > 0 || (by_blocks && arguments.has("conv_block_dims"))};
  if (sizes.has_convolutions) modules.targets = convolutional_targets();
  if (!by_blocks) return modules;
  sizes.ranks = numbers_or(arguments, "block_dims", double(given.rank));
  sizes.alphas = numbers_or(arguments, "block_alphas", given.alpha);
  sizes.conv_ranks = numbers_or(arguments, "conv_block_dims", double(given.conv_rank));
  const double conv_alpha = arguments.has("conv_alpha") ? given.conv_alpha : 1;
  sizes.conv_alphas = arguments.has("conv_block_dims") ? numbers_or(arguments, "conv_block_alphas", conv_alpha)
                                                       : std::vector<double>(SdxlBlock::kBlocks, given.conv_alpha);
  if (sizes.has_convolutions && given.conv_rank == 0) {  // one that all convolutions have until their block has another
    modules.sizes.conv_rank = std::max<int64_t>(1, rank_in("conv_block_dims", std::ranges::max(sizes.conv_ranks)));
    modules.sizes.conv_alpha = conv_alpha;
  }
  const std::vector<double> shares = shares_of_blocks(arguments);
  for (size_t i = 0; i < SdxlBlock::kBlocks; ++i) add_block(modules, sizes, i, has_shares ? shares[i] : 1);
  return modules;
}

// A preset of LyCORIS: what it trains of each model.
struct LycorisPreset {
  std::string_view name;
  bool attentions, resnets, convolutions, projections_alone, text;
};
constexpr LycorisPreset kLycorisPresets[] = {{"full", true, true, true, false, true},
                                             {"full-lin", true, true, false, false, true},
                                             {"attn-mlp", true, false, false, false, true},
                                             {"attn-only", true, false, false, true, true},
                                             {"unet-only", true, true, true, false, false},
                                             {"unet-transformer-only", true, false, false, false, false},
                                             {"unet-convblock-only", false, true, true, false, false}};

std::vector<std::string> sdxl_targets(const LycorisPreset& preset, bool has_convolutions) {
  if (preset.projections_alone) return {"unet.*.attn1.*", "unet.*.attn2.*"};
  std::vector<std::string> targets;
  if (preset.attentions) targets.push_back("unet.*.attentions.*");
  if (!preset.resnets) return targets;
  targets.push_back("unet.*.resnets.*");
  for (const char* pattern : {"-unet.*.resnets.*.conv1", "-unet.*.resnets.*.conv2"})
    if (!has_convolutions) targets.push_back(pattern);
  for (const char* pattern : {"unet.*.downsamplers.*", "unet.*.upsamplers.*"})
    if (has_convolutions) targets.push_back(pattern);
  return targets;
}

NetworkModules lycoris_modules(KohyaModel model, const NetworkArguments& arguments, NetworkSizes sizes) {
  const std::string name = arguments.text("preset", "full");
  const auto* preset = std::ranges::find(kLycorisPresets, name, &LycorisPreset::name);
  check_usage(preset != std::end(kLycorisPresets),
              "preset: expected full, full-lin, attn-mlp, attn-only, unet-only, unet-transformer-only or "
              "unet-convblock-only, found {}; --targets names modules",
              quote(name));
  const bool has_convolutions = model == KohyaModel::sdxl && preset->convolutions && sizes.conv_rank > 0;
  if (!has_convolutions) sizes.conv_rank = 0, sizes.conv_alpha = 0;
  NetworkModules modules{.sizes = sizes, .trains_text = preset->text};
  if (preset->projections_alone) modules.text_modules = "self_attn.*";
  if (model == KohyaModel::sdxl) {
    modules.targets = sdxl_targets(*preset, has_convolutions);
  } else if (preset->attentions && model == KohyaModel::flux) {
    modules.targets = {"transformer.double_blocks.*", "transformer.single_blocks.*"};
    if (preset->projections_alone) modules.targets = {"transformer.*.img_attn.*", "transformer.*.txt_attn.*"};
  } else if (preset->attentions && !preset->projections_alone) {
    modules.targets = {"transformer.joint_blocks.*"};
  }
  return modules;
}

// All linears of blocks, without modulation.
NetworkModules musubi_flux_modules(const NetworkSizes& sizes) {
  return {.targets = {"transformer.double_blocks.*", "transformer.single_blocks.*",
                      "-transformer.double_blocks.*_mod.*", "-transformer.single_blocks.*.modulation.*"},
          .sizes = {.rank = sizes.rank, .alpha = sizes.alpha},
          .trains_text = false};
}

}  // namespace

NetworkModules network_modules(const KohyaNetwork& network, KohyaModel model, const NetworkArguments& arguments,
                               const NetworkSizes& sizes) {
  if (network.family == Family::lycoris) return lycoris_modules(model, arguments, sizes);
  if (network.family == Family::musubi_flux) return musubi_flux_modules(sizes);
  NetworkSizes linears = sizes;
  linears.conv_rank = 0, linears.conv_alpha = 0;
  if (model == KohyaModel::flux) return flux_modules(arguments, linears);
  if (model == KohyaModel::sd3) return sd3_modules(arguments, linears);
  return sdxl_modules(arguments, sizes);
}

}  // namespace wick
