#include "wick/pipelines/adapter_programs.h"

#include <algorithm>
#include <cassert>
#include <initializer_list>

#include "wick/nn/peft.h"

namespace wick {
namespace {

bool begins_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool names_unet_block(std::string_view name) {
  return begins_with_any(
      name, {"down_blocks", "up_blocks", "mid_block", "time_embedding", "add_embedding", "conv_in", "conv_out"});
}

// Names of FLUX's and SD3's modules that none of these programs has: SimpleTuner's earlier ones, and kohya's with a
// prefix of checkpoints in them.
bool is_in_no_program(std::string_view base) {
  return begins_with_any(base, {"lora_unet_transformer_blocks_", "lora_unet_single_transformer_blocks_",
                                "diffusion_model.transformer_blocks.", "diffusion_model.single_transformer_blocks.",
                                "lora_unet_model_diffusion_model_"});
}

bool comfyui_knows(std::string_view base, bool is_sd3) {
  if (is_in_no_program(base)) return false;
  if (base.starts_with("unet.")) return base.find(".to_") == base.npos || base.find(".processor.") != base.npos;
  if (base.starts_with("base_model.model.")) return is_sd3;
  if (base.starts_with("text_encoder.") || base.starts_with("text_encoder_2.text_model.")) return true;
  return begins_with_any(base, {"lora_unet_", "lora_te", "diffusion_model.", "transformer.", "lora_transformer_",
                                "lycoris_", "text_encoders."});
}

bool sd_scripts_knows(std::string_view base, bool) {
  return (base.starts_with("lora_unet_") && !names_unet_block(base.substr(10)) && !is_in_no_program(base)) ||
         begins_with_any(base, {"lora_te1_", "lora_te2_text_model_", "lora_te3_"});
}

bool web_ui_knows(std::string_view base, bool) {
  return begins_with_any(base, {"lora_unet_", "lora_te"}) && !is_in_no_program(base);
}

bool diffusers_knows(std::string_view base, bool is_sd3) {
  if (is_in_no_program(base)) return false;
  if (begins_with_any(base, {"lora_unet_", "lora_te1_", "lora_te2_text_model_"})) return !is_sd3;
  if (base.starts_with("text_encoder_2.")) return base.find("encoder.block.") == base.npos;
  return begins_with_any(base, {"unet.", "transformer.", "text_encoder."}) || names_unet_block(base);
}

bool peft_knows(std::string_view base, bool) { return base.starts_with(kPeftPrefix); }

struct HandlingRow {
  AdapterTrait trait;
  ProgramHandling comfyui, sd_scripts, forge, a1111, diffusers, peft;
};

// What tools/interop/kinds.py found, 2026-11-27: ComfyUI 0.3.64 and 0.33, sd-scripts 48d368fa, Forge dfdcbab6, A1111
// 1.10.1, diffusers 0.42.1, peft 0.21.2.
const HandlingRow& handling_row(AdapterTrait trait) {
  using T = AdapterTrait;
  using enum Handling;
  static constexpr const char *kNoMagnitudes = "leaves a DoRA's magnitudes out",
                              *kBaseNorms = "divides a DoRA's magnitudes by the base's norms",
                              *kInputNorms = "divides a DoRA's magnitudes of outputs by the norms of inputs",
                              *kNoAlpha = "leaves the alphas of GLoRAs out",
                              *kNoBias = "leaves the biases of LoRAs out", *kNoScalar = "leaves LyCORIS' scalars out",
                              *kNoGain = "leaves an OFT's gains out";
  static constexpr HandlingRow kRows[] = {
      // ComfyUI, sd-scripts, Forge, A1111, diffusers, PEFT
      {T::lora, {loads}, {loads}, {loads}, {loads}, {loads}, {loads}},
      {T::loha, {loads}, {ignores}, {loads}, {loads}, {raises}, {loads}},
      {T::lokr, {loads}, {ignores}, {loads}, {loads}, {raises}, {loads}},
      {T::full_difference, {loads}, {ignores}, {loads}, {loads}, {raises}, {ignores}},
      {T::norm_difference, {loads}, {ignores}, {loads}, {loads}, {raises}, {ignores}},
      {T::glora, {loads}, {ignores}, {loads}, {ignores}, {raises}, {ignores}},
      {T::old_glora, {loads}, {ignores}, {loads}, {otherwise, kNoAlpha}, {raises}, {ignores}},
      {T::ia3, {ignores}, {ignores}, {ignores}, {loads}, {raises}, {ignores}},
      {T::oft, {loads}, {ignores}, {ignores}, {loads}, {raises}, {ignores}},
      {T::boft, {loads}, {ignores}, {ignores}, {loads}, {raises}, {ignores}},
      {T::peft_ia3, {ignores}, {ignores}, {ignores}, {raises}, {raises}, {loads}},
      {T::peft_oft, {ignores}, {ignores}, {ignores}, {raises}, {raises}, {loads}},
      {T::peft_boft, {ignores}, {ignores}, {ignores}, {raises}, {raises}, {loads}},
      {T::embedding, {ignores}, {ignores}, {ignores}, {raises}, {raises}, {loads}},
      {T::input_magnitude,
       {loads},
       {otherwise, kNoMagnitudes},
       {loads},
       {loads},
       {otherwise, kNoMagnitudes},
       {ignores}},
      {T::output_magnitude,
       {otherwise, kBaseNorms},
       {otherwise, kNoMagnitudes},
       {otherwise, kBaseNorms},
       {otherwise, kInputNorms},
       {otherwise, kNoMagnitudes},
       {ignores}},
      {T::peft_magnitude,
       {otherwise, kNoMagnitudes},
       {otherwise, kNoMagnitudes},
       {otherwise, kNoMagnitudes},
       {otherwise, kNoMagnitudes},
       {loads},
       {loads}},
      {T::core, {loads}, {raises}, {loads}, {loads}, {raises}, {loads}},
      {T::bias,
       {otherwise, kNoBias},
       {otherwise, kNoBias},
       {otherwise, kNoBias},
       {otherwise, kNoBias},
       {raises},
       {loads}},
      {T::scalar,
       {otherwise, kNoScalar},
       {otherwise, kNoScalar},
       {otherwise, kNoScalar},
       {otherwise, kNoScalar},
       {raises},
       {ignores}},
      {T::gain, {otherwise, kNoGain}, {ignores}, {ignores}, {loads}, {raises}, {ignores}},
  };
  const auto row = std::ranges::find(kRows, trait, &HandlingRow::trait);
  assert(row != std::end(kRows));
  return *row;
}

template <ProgramHandling HandlingRow::*program>
ProgramHandling handles(AdapterTrait trait) {
  return handling_row(trait).*program;
}

constexpr AdapterProgram kAdapterPrograms[] = {
    {"ComfyUI", comfyui_knows, handles<&HandlingRow::comfyui>},
    {"sd-scripts", sd_scripts_knows, handles<&HandlingRow::sd_scripts>},
    {"A1111", web_ui_knows, handles<&HandlingRow::a1111>},
    {"Forge", web_ui_knows, handles<&HandlingRow::forge>},
    {"diffusers", diffusers_knows, handles<&HandlingRow::diffusers>, true},
    {"PEFT", peft_knows, handles<&HandlingRow::peft>, true},
};

}  // namespace

std::span<const AdapterProgram> adapter_programs() { return kAdapterPrograms; }

}  // namespace wick
