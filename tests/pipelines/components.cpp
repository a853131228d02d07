// Networks that several families have, as components on the inputs of `wick forward`, against transformers and
// diffusers; each on models of odd sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "device.h"
#include "golden.h"
#include "io/files.h"
#include "wick/io/json.h"
#include "wick/models/flux/names.h"
#include "wick/models/sd3/names.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/diffusion.h"

namespace wick {
namespace {

struct Case {
  std::string model, component, name;
  bool grad, lora;
};

std::vector<Case> cases_of(const std::string& folder) {
  const std::string source = (kGolden / folder / "index.json").string();
  std::vector<Case> all;
  for (const auto& row : read_json(source))
    all.push_back({get<std::string>(row, "model", source), get<std::string>(row, "component", source),
                   get<std::string>(row, "name", source), get<bool>(row, "grad", source),
                   get<bool>(row, "lora", source)});
  return all;
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + "_" + info.param.name;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// "text_encoder_3.encoder.block.0.layer.1.DenseReluDense.wo" is "lora_te3_encoder_block_0_layer_1_DenseReluDense_wo".
ModuleNames kohya_names(const std::string& prefix) {
  return [prefix](const std::string& path) -> std::vector<ModuleName> {
    std::string name = prefix + path.substr(path.find('.') + 1);
    std::replace(name.begin(), name.end(), '.', '_');
    return {name};
  };
}

Tensors run(const Component& component, const std::filesystem::path& model, const std::filesystem::path& in,
            Adapter& adapter, bool grad) {
  const ComponentRun loaded =
      component.load({Checkpoint(model), &adapter, {.place = Residence::on(test::backend(), DType::f32)}});
  adapter.check_complete();
  ComponentInputs inputs(in, grad, test::memory());
  std::optional<Tape> tape;
  if (grad) tape.emplace();
  auto [tensors, loss_of] = loaded(inputs);
  if (!grad) return tensors;
  const Tensor loss = loss_of(inputs);
  const Grads grads = tape->backward(loss);
  tensors["loss"] = reshape(loss.detached(), {});
  for (const auto& [name, gradient] : inputs.gradients(grads)) tensors["grad." + name] = gradient;
  for (const auto& [name, gradient] : adapter.gradients(grads)) tensors["grad." + name] = gradient;
  return tensors;
}

// Outputs to 1e-5 and gradients to 1e-4, relative to the largest value of the tensor.
void expect_golden(const Case& c, const Component& component, ModuleNames names) {
  const std::filesystem::path folder = kGolden / c.model;
  Adapter adapter(std::move(names));
  if (c.lora) adapter.add_file(folder / "lora.safetensors", 1, /*trainable=*/c.grad);
  const Tensors found = run(component, folder, folder / (c.name + ".in.safetensors"), adapter, c.grad);
  const SafetensorsFile expected = open_golden(c.model + "/" + c.name + ".out");
  EXPECT_EQ(found.size(), expected.tensors().size());
  for (const auto& [name, info] : expected.tensors()) {
    ASSERT_TRUE(found.contains(name)) << name;
    ASSERT_EQ(found.at(name).shape(), info.shape) << name;
    EXPECT_LE(relative_error(found.at(name), expected.load(name)), name.starts_with("grad.") ? 1e-4 : 1e-5) << name;
  }
}

class T5 : public testing::TestWithParam<Case> {};
TEST_P(T5, AgreesWithTransformers) {
  expect_golden(GetParam(), t5_component(GetParam().component, {}), kohya_names("lora_te3_"));
}
INSTANTIATE_TEST_SUITE_P(Golden, T5, testing::ValuesIn(cases_of("t5")), name_of_case);

const Component& component_of(const std::string& known, const std::string& name) {
  for (const DiffusionFamily& family : diffusion_families())
    if (std::ranges::find(family.known, known, &KnownModel::name) != family.known.end())
      return *std::ranges::find(family.components, name, &Component::name);
  fail("there is no family of {}", known);
}

class Sd3 : public testing::TestWithParam<Case> {};
TEST_P(Sd3, AgreesWithDiffusers) {
  expect_golden(GetParam(), component_of("sd3-medium", "transformer"), sd3_module_names(3));
}
INSTANTIATE_TEST_SUITE_P(Golden, Sd3, testing::ValuesIn(cases_of("sd3_transformer")), name_of_case);

class Flux : public testing::TestWithParam<Case> {};
TEST_P(Flux, AgreesWithDiffusers) {
  expect_golden(GetParam(), component_of("flux-dev", "transformer"), flux_module_names());
}
INSTANTIATE_TEST_SUITE_P(Golden, Flux, testing::ValuesIn(cases_of("flux")), name_of_case);

}  // namespace
}  // namespace wick
