#include "wick/nn/recognise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "wick/io/quote.h"

namespace wick {
namespace {

constexpr std::string_view kModel = "model.diffusion_model.";

// A mark fits if for each of `all` some name begins with it.
struct NetworkMark {
  Network network;
  std::vector<std::string_view> all;
};

// In each layout; CLIP-L stands for both CLIPs, which their places or widths tell apart.
const std::vector<NetworkMark> kNetworks = {
    {Network::flux, {"double_blocks.", "img_in."}},
    {Network::flux, {"transformer_blocks.", "x_embedder.", "time_text_embed.text_embedder."}},
    {Network::sd3, {"joint_blocks."}},
    {Network::sd3, {"transformer_blocks.", "pos_embed.proj.", "context_embedder."}},
    {Network::sdxl, {"input_blocks.", "label_emb."}},
    {Network::sdxl, {"down_blocks.", "add_embedding."}},
    {Network::clip_l, {"text_model.encoder.layers."}},
    {Network::clip_l, {"encoder.layers.", "embeddings.token_embedding."}},
    {Network::clip_l, {"transformer.resblocks.", "token_embedding."}},
    {Network::t5, {"encoder.block.", "shared."}},
    {Network::t5, {"encoder.block.", "encoder.final_layer_norm."}},
    {Network::t5, {"enc.blk."}},
    {Network::vae, {"encoder.conv_in.", "encoder.conv_out."}},
    {Network::vae, {"decoder.conv_in.", "decoder.conv_out."}}};

// Where files of several networks keep them.
struct Place {
  Network network;
  std::string_view prefix;
};
constexpr Place kPlaces[] = {
    {Network::clip_l, "text_encoders.clip_l.transformer."},
    {Network::clip_l, "conditioner.embedders.0.transformer."},
    {Network::clip_g, "text_encoders.clip_g.transformer."},
    {Network::clip_g, "conditioner.embedders.1.model."},
    {Network::t5, "text_encoders.t5xxl.transformer."},
    {Network::vae, "first_stage_model."},
    {Network::vae, "vae."},
};

// Files of other kinds that people hand over; some resemble the networks above.
struct OtherMark {
  const char* words;
  std::vector<std::string_view> all;
};
const std::vector<OtherMark> kOthers = {
    {"the model Chroma", {"distilled_guidance_layer."}},
    {"the model FLUX.2", {"double_stream_modulation_img."}},
    {"the model HunyuanVideo", {"txt_in.individual_token_refiner."}},
    {"FLUX.1 Redux, which reads pictures", {"redux_up.", "redux_down."}},
    {"an IP-Adapter", {"ip_adapter."}},
    {"an IP-Adapter", {"double_blocks.0.processor.ip_adapter_"}},
    {"a LoRA in XLabs' layout", {"double_blocks.0.processor."}},
    {"PuLID", {"pulid_ca."}},
    {"a ControlNet", {"controlnet_blocks."}},
    {"a ControlNet", {"controlnet_down_blocks."}},
    {"a ControlNet", {"control_model."}},
    {"a ControlNet", {"input_hint_block."}},
    {"the model HunyuanVideo", {"context_embedder.token_refiner."}},
    {"the model Bria or LongCat-Image", {"x_embedder.", "single_transformer_blocks.", "time_embed."}},
    {"the model Z-Image or Lumina 2", {"noise_refiner.", "cap_embedder."}},
    {"the model Lumina 2", {"noise_refiner.", "time_caption_embed."}},
    {"the model Qwen-Image", {"transformer_blocks.", "txt_norm."}},
    {"the model Wan", {"blocks.", "patch_embedding.", "text_embedding."}},
    {"the model Wan", {"blocks.", "patch_embedding.", "condition_embedder."}},
    {"the model AuraFlow", {"joint_transformer_blocks."}},
    {"the model AuraFlow", {"double_layers.", "single_layers."}},
    {"the model HiDream", {"double_stream_blocks."}},
    {"the model LTX-Video", {"transformer_blocks.", "caption_projection.", "scale_shift_table", "proj_in."}},
    {"a tiny autoencoder (TAESD)", {"encoder.layers.", "decoder.layers."}},
    {"the model PixArt", {"transformer_blocks.", "adaln_single."}}};
const std::vector<OtherMark> kLastOthers = {{"Stable Diffusion 1 or 2", {"input_blocks.", "time_embed."}},
                                            {"Stable Diffusion 1 or 2", {"down_blocks.", "time_embedding."}},
                                            {"an image encoder", {"vision_model."}},
                                            {"a language model", {"model.layers."}},
                                            {"a language model", {"blk."}}};

class Names {
 public:
  explicit Names(const TensorSource& source) : names_(source.names()) { std::ranges::sort(names_); }

  bool have(std::string_view prefix, const std::vector<std::string_view>& all) const {
    return std::ranges::all_of(all, [&](std::string_view part) {
      const std::string stem = std::string(prefix).append(part);
      const auto at = std::ranges::lower_bound(names_, stem);
      return at != names_.end() && at->starts_with(stem);
    });
  }
  const char* first_of(const std::vector<OtherMark>& marks) const {
    for (const std::string_view prefix : {std::string_view(), kModel})
      for (const OtherMark& mark : marks)
        if (have(prefix, mark.all)) return mark.words;
    return nullptr;
  }
  bool is_lora() const {
    return std::ranges::any_of(names_, [](const std::string& name) {
      for (const char* part : {".lora_down.", ".lora_up.", ".lora_A.", ".lora_B.", ".lora.down.", ".lora.up.",
                               "_lora.down.", "_lora.up.", ".lora_linear_layer.", ".lokr_w", ".hada_w"})
        if (name.find(part) != name.npos) return true;
      return false;
    });
  }
  bool empty() const { return names_.empty(); }
  const std::string& first() const { return names_.front(); }

 private:
  std::vector<std::string> names_;
};

// CLIP-L is 768 wide, bigG 1280; a small one may be either.
std::vector<Network> clips_in(const TensorSource& source) {
  for (const char* table : {"text_model.embeddings.token_embedding.weight", "token_embedding.weight"})
    if (const auto found = source.find(table, {}); found && found->shape.rank() == 2) {
      if (found->shape[1] == 768) return {Network::clip_l};
      if (found->shape[1] == 1280) return {Network::clip_g};
    }
  return {Network::clip_l, Network::clip_g};
}

// FLUX's blocks behind an input of more channels than latents have.
const char* told_more(const TensorSource& source, const Names& names) {
  for (const std::string_view prefix : {std::string_view(), kModel})
    for (const NetworkMark& mark : kNetworks) {
      if (mark.network != Network::flux || !names.have(prefix, mark.all)) continue;
      for (const char* input : {"img_in.weight", "x_embedder.weight"})
        if (const auto found = source.find(std::string(prefix) + input, {}); found && found->shape.rank() == 2)
          return flux_variant(found->shape[1]);
    }
  return nullptr;
}

const char* other_in(const TensorSource& source, const Names& names) {
  const char* other = names.first_of(kOthers);
  return other ? other : told_more(source, names);
}

}  // namespace

const char* flux_variant(int64_t channels) {
  return channels == 384 ? "FLUX.1 Fill" : channels == 128 ? "FLUX.1 Canny or Depth" : nullptr;
}

const char* in_words(Network network) {
  switch (network) {
    case Network::flux:
      return "FLUX's transformer";
    case Network::sd3:
      return "SD3's transformer";
    case Network::sdxl:
      return "SDXL's UNet";
    case Network::clip_l:
      return "CLIP-L";
    case Network::clip_g:
      return "OpenCLIP bigG";
    case Network::t5:
      return "a T5 encoder";
    case Network::vae:
      return "a VAE";
  }
  return "";
}

std::map<Network, std::string> networks_in(const TensorSource& source) {
  const Names names(source);
  std::map<Network, std::string> found;
  if (names.is_lora() || other_in(source, names)) return found;
  for (const NetworkMark& mark : kNetworks) {
    const bool clip = mark.network == Network::clip_l, denoiser = mark.network <= Network::sdxl;
    if (names.have("", mark.all))
      for (const Network network : clip ? clips_in(source) : std::vector{mark.network}) found.emplace(network, "");
    if (denoiser && names.have(kModel, mark.all)) found.emplace(mark.network, kModel);
    for (const Place& place : kPlaces) {
      const bool fits = place.network == mark.network || (clip && place.network == Network::clip_g);
      if (fits && names.have(place.prefix, mark.all)) found.emplace(place.network, place.prefix);
    }
  }
  return found;
}

std::string contents_in_words(const TensorSource& source) {
  const Names names(source);
  if (names.is_lora()) return "a LoRA";
  if (const char* other = other_in(source, names)) return other;
  const auto networks = networks_in(source);
  std::vector<std::string> words;
  for (const auto& [network, prefix] : networks) {
    // A CLIP that may be either is found as both.
    const bool either = prefix.empty() && networks.contains(Network::clip_l) && networks.contains(Network::clip_g);
    if (either && network == Network::clip_g) continue;
    words.emplace_back(either && network == Network::clip_l ? "a CLIP text encoder" : in_words(network));
  }
  if (words.size() > 1) {
    const std::string last = words.back();
    words.pop_back();
    return fmt::format("{} and {}", fmt::join(words, ", "), last);
  }
  if (!words.empty()) return words.front();
  if (const char* other = names.first_of(kLastOthers)) return other;
  return names.empty() ? "no tensors" : "tensors of an unknown kind, " + quote(names.first()) + " the first of them";
}

}  // namespace wick
