// LoRAs out of models to which known ones were added.
#include "wick/pipelines/extract_adapter.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "pipelines/adapters.h"
#include "wick/io/safetensors.h"
#include "wick/ops/matmul.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

// A diffusers folder with its networks in f32, of which `edit` changes the tensors of those that it is called with.
void write_model(const fs::path& from, const fs::path& to,
                 const std::function<void(const std::string& component, Tensors&)>& edit) {
  fs::copy(from, to, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    if (entry.path().extension() != ".safetensors") continue;
    Tensors tensors;
    {
      const SafetensorsFile file = SafetensorsFile::open(entry.path());
      for (const auto& [key, info] : file.tensors()) tensors[key] = cast(file.load(key), DType::f32);
    }
    edit(entry.path().parent_path().filename().string(), tensors);
    save_safetensors(entry.path(), tensors);
  }
}

Tensor change_of(const StoredLora& lora, const Shape& shape) {
  const Tensor up = reshape(lora.up, {lora.up.dim(0), lora.rank()}), down = reshape(lora.down, {lora.rank(), -1});
  return reshape(matmul(up, down) * float(lora.scale()), shape);
}

class Extractions : public testing::TestWithParam<const char*> {};

TEST_P(Extractions, RecoverAKnownLora) {
  const fs::path model = kModels / GetParam();
  const AdapterModules modules = AdapterModules::of(model);
  AdapterFile known = random_lora(modules, AdapterFormat::kohya, DType::f32);
  std::erase_if(known.loras, [&](const auto& entry) {  // what diffusers names, and the family's targets have
    const NamedModule& module = *modules.find(entry.first).module;
    return module.spelled(Spelling::diffusers).empty() ||
           (!module.path.starts_with("text_encoder") && module.path.find("blocks") == std::string::npos);
  });
  ASSERT_GT(known.loras.size(), 20u);
  const AdapterFile split = converted(known, modules, AdapterFormat::diffusers);
  const TemporaryDirectory folder;
  size_t edited = 0;
  write_model(model, folder / "base", [](const std::string&, Tensors&) {});
  write_model(model, folder / "tuned", [&](const std::string& component, Tensors& tensors) {
    for (const auto& [base, lora] : split.loras) {
      if (!base.starts_with(component + ".")) continue;
      std::string name = base.substr(component.size() + 1) + ".weight";
      if (!tensors.contains(name)) name = name.substr(name.find('.') + 1);  // transformers 5 leaves out "text_model"
      ASSERT_TRUE(tensors.contains(name)) << name;
      Tensor& w = tensors.at(name);
      w = w + change_of(lora, w.shape());
      ++edited;
    }
  });
  EXPECT_EQ(edited, split.loras.size());
  const Extracted found = extract_lora(folder / "tuned", folder / "base", {.rank = 4});
  EXPECT_EQ(found.lora.loras.size(), known.loras.size());
  EXPECT_EQ(found.left_out, 0);
  EXPECT_GE(found.energy, 1 - 1e-6);
  known.write(folder / "known.safetensors");
  found.lora.write(folder / "found.safetensors");
  expect_same_changes(changes(modules, {{folder / "found.safetensors"}}),
                      changes(modules, {{folder / "known.safetensors"}}));
  const Extracted low = extract_lora(folder / "tuned", folder / "base", {.rank = 1});
  EXPECT_LT(low.energy, 0.99);
  EXPECT_GT(low.energy, 0.2);
  expect_error([&] { extract_lora(folder / "base", folder / "base", {.rank = 1}); }, {"none of", "differs"});
  expect_error([&] { extract_lora(folder / "tuned", folder / "base", {.rank = 1, .targets = {"*.nothing"}}); },
               {"--targets", "\"*.nothing\" matches no module"});
}

INSTANTIATE_TEST_SUITE_P(Models, Extractions, testing::Values("tiny", "tiny-flux", "tiny-sd3"), [](const auto& row) {
  std::string name = row.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace wick
