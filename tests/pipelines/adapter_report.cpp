// How `wick inspect` reports other programs for each kind of adapter. The table is pipelines/adapter_programs.h;
// tools/interop/kinds.py checks it against those programs.
#include "wick/pipelines/adapter_report.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/files.h"
#include "wick/io/safetensors.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/adapter_programs.h"

namespace wick {
namespace {

using Tensors = std::map<std::string, Tensor>;

Tensor of_shape(const Shape& shape) {
  Rng rng(7);
  return random_normal(shape, rng);
}

Tensors joined(Tensors all, const Tensors& more) {
  all.insert(more.begin(), more.end());
  return all;
}

// Factors of one module from 6 to 8, by suffixes.
Tensors lora_factors() { return {{".lora_down.weight", of_shape({2, 6})}, {".lora_up.weight", of_shape({8, 2})}}; }
Tensors loha_factors() {
  return {{".hada_w1_a", of_shape({8, 2})},
          {".hada_w1_b", of_shape({2, 6})},
          {".hada_w2_a", of_shape({8, 2})},
          {".hada_w2_b", of_shape({2, 6})}};
}
Tensors lokr_factors() { return {{".lokr_w1", of_shape({2, 2})}, {".lokr_w2", of_shape({4, 3})}}; }

std::string told_of(const AdapterReport::Program& program, int64_t modules) {
  const std::string count = program.modules == modules ? "all" : program.modules == 0 ? "none" : "some";
  return program.remark.empty() ? count : count + "; " + program.remark;
}

std::map<std::string, std::string> all_told(const Tensors& tensors, const std::string& base) {
  const TemporaryDirectory folder;
  Tensors named;
  for (const auto& [suffix, tensor] : tensors) named[base + suffix] = tensor;
  save_safetensors(folder / "l.safetensors", named);
  const AdapterReport report = AdapterReport::of(folder / "l.safetensors");
  std::map<std::string, std::string> told;
  for (const AdapterReport::Program& program : report.programs) told[program.name] = told_of(program, report.modules);
  return told;
}

struct KindCase {
  const char* name;
  Tensors tensors;  // by suffixes
  // The report on programs that read these names.
  std::string comfyui, sd_scripts, forge, a1111, diffusers;
};

const char kNoMagnitudes[] = "all; leaves a DoRA's magnitudes out",
           kBaseNorms[] = "all; divides a DoRA's magnitudes by the base's norms",
           kNoBias[] = "all; leaves the biases of LoRAs out", kNoScalar[] = "all; leaves LyCORIS' scalars out";

std::string left(const std::string& kind) { return "none; leaves out " + kind; }
std::string raised(const std::string& kind) { return "none; raises an error at " + kind; }

std::vector<KindCase> kind_cases() {
  const Tensors inputs = {{".dora_scale", of_shape({1, 6})}}, outputs = {{".dora_scale", of_shape({8, 1})}},
                blocks = {{".oft_blocks", of_shape({4, 2, 2})}};
  return {
      {"LoRA", lora_factors(), "all", "all", "all", "all", "all"},
      {"DoRA of inputs", joined(lora_factors(), inputs), "all", kNoMagnitudes, "all", "all", kNoMagnitudes},
      {"DoRA of outputs", joined(lora_factors(), outputs), kBaseNorms, kNoMagnitudes, kBaseNorms,
       "all; divides a DoRA's magnitudes of outputs by the norms of inputs", kNoMagnitudes},
      {"DoRA, PEFT's name", joined(lora_factors(), {{".lora_magnitude_vector", of_shape({8})}}), kNoMagnitudes,
       kNoMagnitudes, kNoMagnitudes, kNoMagnitudes, "all"},
      {"LoRA, Tucker",
       {{".lora_down.weight", of_shape({2, 6, 1, 1})},
        {".lora_mid.weight", of_shape({2, 2, 3, 3})},
        {".lora_up.weight", of_shape({8, 2, 1, 1})}},
       "all",
       raised("LoRA, Tucker"),
       "all",
       "all",
       raised("LoRA, Tucker")},
      {"LoRA, biases", joined(lora_factors(), {{".lora_up.bias", of_shape({8})}}), kNoBias, kNoBias, kNoBias, kNoBias,
       raised("LoRA, biases")},
      {"LoHa", loha_factors(), "all", left("LoHa"), "all", "all", raised("LoHa")},
      {"LoHa with a scalar", joined(loha_factors(), {{".scalar", full({}, 2)}}), kNoScalar, left("LoHa"), kNoScalar,
       kNoScalar, raised("LoHa")},
      {"LoHa, DoRA", joined(loha_factors(), inputs), "all", left("LoHa, DoRA"), "all", "all", raised("LoHa, DoRA")},
      {"LoKr", lokr_factors(), "all", left("LoKr"), "all", "all", raised("LoKr")},
      {"full difference",
       {{".diff", of_shape({8, 6})}},
       "all",
       left("full difference"),
       "all",
       "all",
       raised("full difference")},
      {"norm difference",
       {{".w_norm", of_shape({8})}},
       "all",
       left("norm difference"),
       "all",
       "all",
       raised("norm difference")},
      {"GLoRA",
       {{".a1.weight", of_shape({6, 2})},
        {".a2.weight", of_shape({2, 6})},
        {".b1.weight", of_shape({8, 2})},
        {".b2.weight", of_shape({2, 6})}},
       "all",
       left("GLoRA"),
       "all",
       left("GLoRA"),
       raised("GLoRA")},
      {"GLoRA before LyCORIS 3",
       {{".a1.weight", of_shape({2, 6})},
        {".a2.weight", of_shape({6, 2})},
        {".b1.weight", of_shape({2, 6})},
        {".b2.weight", of_shape({8, 2})}},
       "all",
       left("GLoRA"),
       "all",
       "all; leaves the alphas of GLoRAs out",
       raised("GLoRA")},
      {"IA3",
       {{".weight", of_shape({8})}, {".on_input", zeros({})}},
       left("IA3"),
       left("IA3"),
       left("IA3"),
       "all",
       raised("IA3")},
      {"OFT", blocks, "all", left("OFT"), left("OFT"), "all", raised("OFT")},
      {"OFT with gains", joined(blocks, {{".rescale", of_shape({8, 1})}}), "all; leaves an OFT's gains out",
       left("OFT"), left("OFT"), "all", raised("OFT")},
      {"BOFT", {{".oft_blocks", of_shape({2, 2, 4, 4})}}, "all", left("BOFT"), left("BOFT"), "all", raised("BOFT")},
      {"OFT of inputs",
       {{".oft_R.weight", of_shape({3, 1})}},
       left("OFT"),
       left("OFT"),
       left("OFT"),
       raised("OFT"),
       raised("OFT")},
  };
}

TEST(AdapterReport, TellsWhatEachProgramMakesOfEachKind) {
  for (const KindCase& c : kind_cases()) {
    SCOPED_TRACE(c.name);
    const std::map<std::string, std::string> told =
        all_told(c.tensors, "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_v");
    const std::map<std::string, std::string> want = {{"ComfyUI", c.comfyui},
                                                     {"sd-scripts", c.sd_scripts},
                                                     {"Forge", c.forge},
                                                     {"A1111", c.a1111},
                                                     {"diffusers", c.diffusers}};
    EXPECT_EQ(told, want);
  }
}

// Of a file with several kinds, the modules of those that are loaded count, unless one ends the program.
TEST(AdapterReport, CountsTheModulesThatAreLoaded) {
  const TemporaryDirectory folder;
  Tensors named;
  const std::string block = "lora_unet_input_blocks_4_1_transformer_blocks_0_";
  for (const auto& [suffix, tensor] : lora_factors())
    for (const char* layer : {"attn2_to_q", "attn2_to_k"}) named[block + layer + suffix] = tensor;
  for (const auto& [suffix, tensor] : lokr_factors()) named[block + "attn2_to_v" + suffix] = tensor;
  save_safetensors(folder / "l.safetensors", named);
  std::map<std::string, std::pair<int64_t, std::string>> found;
  for (const auto& program : AdapterReport::of(folder / "l.safetensors").programs)
    found[program.name] = {program.modules, program.remark};
  EXPECT_EQ(found["ComfyUI"], (std::pair<int64_t, std::string>(3, "")));
  EXPECT_EQ(found["sd-scripts"], (std::pair<int64_t, std::string>(2, "leaves out LoKr")));
  EXPECT_EQ(found["diffusers"], (std::pair<int64_t, std::string>(0, "raises an error at LoKr")));
}

TEST(AdapterReport, EveryTraitHasARow) {
  for (const AdapterProgram& program : adapter_programs())
    for (int trait = 0; trait <= int(AdapterTrait::gain); ++trait) {
      const ProgramHandling handling = program.handles(AdapterTrait(trait));
      EXPECT_EQ(handling.how == Handling::otherwise, handling.remark[0] != 0) << program.name << " " << trait;
    }
}

}  // namespace
}  // namespace wick
