// LoRA files in every spelling on FLUX and SD3, against diffusers and PEFT (tools/golden/lora_layouts.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "device.h"
#include "io/files.h"
#include "pipelines/golden.h"
#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/models/sd3/names.h"
#include "wick/models/sd3/transformer.h"
#include "wick/nn/checkpoint.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

using Tensors = std::map<std::string, Tensor>;

Tensors all_of(const SafetensorsFile& file) {
  Tensors tensors;
  for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
  return tensors;
}

// A model with its adapter as a function of golden inputs, in the layout of the outputs.
struct Family {
  std::string name, fused;  // below tests/golden
  ModuleNames names;
  std::function<Tensor(const Tensors& in, Adapter& adapter)> run;
};

Scope scope(const TensorSource& source, Adapter& adapter) {
  return {Weights(source, {.place = Residence::on(test::backend(), DType::f32)}), "transformer", &adapter};
}

Tensor run_flux(const Tensors& in, Adapter& adapter) {
  const Checkpoint files = Checkpoint(kGolden / "flux/dev").component("transformer");
  const FluxConfig config = FluxConfig::read(files);
  const FluxTransformer model(scope(flux_source(files.source()), adapter), config);
  adapter.check_complete();
  const auto here = [&](const char* name) { return in.at(name).to(test::memory()); };
  const std::vector<float> ids = in.at("img_ids").to_vector();
  FluxPlaces places(size_t(in.at("txt_ids").dim(0)));
  for (size_t i = 0; i < ids.size(); i += 3) places.push_back({ids[i], ids[i + 1], ids[i + 2]});
  return model({.tokens = here("hidden_states"),
                .timestep = here("timestep") * 1000.0f,
                .guidance = here("guidance"),
                .pooled = here("pooled_projections"),
                .text = here("encoder_hidden_states"),
                .rotary = flux_rotary(places, config, test::memory())});
}

Tensor run_sd3(const Tensors& in, Adapter& adapter) {
  const Checkpoint files = Checkpoint(kGolden / "sd3_transformer/dual").component("transformer");
  const Sd3Transformer model(scope(sd3_source(files.source()), adapter), Sd3Config::read(files));
  adapter.check_complete();
  const auto here = [&](const char* name) { return in.at(name).to(test::memory()); };
  const Tensor latents = to_channels_last(here("hidden_states"));
  return to_channels_first(model({.latents = latents,
                                  .timestep = here("timestep"),
                                  .pooled = here("pooled_projections"),
                                  .text = here("encoder_hidden_states"),
                                  .positions = model.positions(latents.dim(1), latents.dim(2))}));
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {{"flux", "flux/dev/lora", flux_module_names(), run_flux},
                                          {"sd3", "sd3_transformer/dual/lora", sd3_module_names(3), run_sd3}};
  return all;
}

struct Spelling {
  std::string prefix;
  bool flat;

  // "transformer.a.b.lora_A.weight" is "lora_transformer_a_b.lora_down.weight", "lycoris_a_b.lora_down.weight", …
  std::string operator()(const std::string& key) const {
    const std::string name = key.substr(key.find('.') + 1);
    size_t end = name.find(".lora_");
    if (end == name.npos) end = name.rfind('.');
    std::string module = name.substr(0, end), suffix = name.substr(end);
    if (!flat) return prefix + module + suffix;
    std::ranges::replace(module, '.', '_');
    const bool down = suffix == ".lora_A.weight", up = suffix == ".lora_B.weight";
    return prefix + module + (down ? ".lora_down.weight" : up ? ".lora_up.weight" : suffix);
  }
};

class LoraLayouts : public testing::TestWithParam<Family> {
 protected:
  const Family& family() const { return GetParam(); }
  Tensors golden(const std::string& name) const { return all_of(open_golden("lora_layouts/" + family().name + name)); }
  Tensors inputs() const { return golden("/in"); }
};

TEST_P(LoraLayouts, SplitFilesOfEverySpellingActAsInPeft) {
  const Tensors in = inputs(), split = golden("/split"), expected = golden("/split.out");
  const TemporaryDirectory folder;
  for (const Spelling& spelling : {Spelling{"transformer.", false},
                                   {"", false},
                                   {"base_model.model.", false},
                                   {"lora_transformer_", true},
                                   {"lycoris_", true},
                                   {"diffusion_model.", false},  // SimpleTuner's earlier ones
                                   {"lora_unet_", true}}) {
    Tensors file;
    std::map<std::string, std::string> spelled;
    for (const auto& [key, value] : split) {
      file[spelling(key)] = value;
      spelled[spelling(key)] = key;
    }
    save_safetensors(folder / "l.safetensors", file);
    Adapter adapter(family().names, {{folder / "l.safetensors"}}, /*trainable=*/true);
    Tape tape;
    const Tensor sample = family().run(in, adapter);
    EXPECT_LE(relative_error(sample.detached(), expected.at("sample")), 1e-5) << spelling.prefix;
    const auto gradients = adapter.gradients(tape.backward(mse_loss(sample, in.at("target").to(test::memory()))));
    EXPECT_EQ(gradients.size() + 2, expected.size());
    for (const auto& [key, gradient] : gradients)
      EXPECT_LE(relative_error(gradient, expected.at("grad." + spelled.at(key))), 1e-4) << key;
  }
}

// Kohya's names are held against diffusers elsewhere (tools/golden/flux.py, sd3_transformer.py); here ComfyUI's generic
// ones are held against kohya's.
TEST_P(LoraLayouts, FusedFilesHaveDottedNamesToo) {
  const Tensors in = inputs();
  const std::string kohya = (kGolden / (family().fused + ".safetensors")).string();
  std::map<std::string, std::string> paths;  // by kohya's name
  const ModuleNames recording = [&](const std::string& path) {
    const std::vector<ModuleName> all = family().names(path);
    if (!all.empty()) paths[all.front().name] = path;
    return all;
  };
  Adapter first(recording, {{kohya}});
  const Tensor expected = family().run(in, first);
  const TemporaryDirectory folder;
  for (const std::string prefix : {"diffusion_model.", ""}) {
    Tensors file;
    for (const auto& [key, value] : all_of(SafetensorsFile::open(kohya))) {
      const size_t dot = key.find('.');
      file[prefix + paths.at(key.substr(0, dot)).substr(std::string("transformer.").size()) + key.substr(dot)] = value;
    }
    save_safetensors(folder / "l.safetensors", file);
    Adapter again(family().names, {{folder / "l.safetensors"}});
    EXPECT_EQ(family().run(in, again).to_vector(), expected.to_vector());
  }
}

// The same factors with their scale in the ups.
Tensors without_alphas(const Tensors& file) {
  Tensors all;
  for (const auto& [key, value] : file) {
    const std::string module = key.substr(0, key.find(".lora_"));
    if (key.ends_with(".alpha")) continue;
    const bool is_up = key.ends_with(".lora_up.weight") || key.ends_with(".lora_B.weight");
    all[key] = is_up ? value * (file.at(module + ".alpha").item() / float(value.dim(1))) : value;
  }
  return all;
}

// As fal's trainer of Kontext writes FLUX's modules, and others diffusers' of SD3.
TEST_P(LoraLayouts, OneFileUnderPeftsNamesHasAScaleOfOne) {
  const Tensors in = inputs();
  const std::string fused = (kGolden / (family().fused + ".safetensors")).string();
  std::map<std::string, std::string> paths;  // by kohya's name
  const ModuleNames recording = [&](const std::string& path) {
    const std::vector<ModuleName> all = family().names(path);
    if (!all.empty()) paths[all.front().name] = path;
    return all;
  };
  Adapter kohyas(recording, {{fused}});
  const Tensor of_fused = family().run(in, kohyas);
  const bool is_flux = family().name == "flux";
  const Tensor expected = is_flux ? of_fused.detached() : golden("/split.out").at("sample");
  const size_t component = std::string("transformer.").size();
  Tensors file;
  for (const auto& [key, value] : without_alphas(is_flux ? all_of(SafetensorsFile::open(fused)) : golden("/split"))) {
    const size_t dot = key.find('.');
    const std::string name = is_flux ? paths.at(key.substr(0, dot)) + key.substr(dot) : key;
    file["base_model.model." + name.substr(component)] = value;
  }
  const TemporaryDirectory folder;
  for (const char* name : {"pytorch_lora_weights.safetensors", "adapter_model.safetensors"})
    save_safetensors(folder / name, file);
  Adapter adapter(family().names, {{folder / "pytorch_lora_weights.safetensors"}});
  EXPECT_LE(relative_error(family().run(in, adapter), expected), 1e-5);
  expect_error([&] { Adapter(family().names, {{folder / "adapter_model.safetensors"}}); },
               {"PEFT keeps the alpha", "adapter_config.json"});
}

TEST_P(LoraLayouts, SplitAndFusedFilesAddUp) {
  const std::string split = (kGolden / "lora_layouts" / family().name / "split.safetensors").string(),
                    fused = (kGolden / (family().fused + ".safetensors")).string();
  const std::vector<LoraFile> files = {{split, 1.5f}, {fused, -0.75f}};
  for (const std::vector<LoraFile>& order : {files, {files[1], files[0]}}) {
    Adapter adapter(family().names, order);
    EXPECT_LE(relative_error(family().run(inputs(), adapter), golden("/both.out").at("sample")), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, LoraLayouts, testing::ValuesIn(families()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace wick
