// Random LoRAs of the models that ship with Wick, and what adapters change, as Adapter reads them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "source_dir.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/convert_adapter.h"

namespace wick {

inline const std::filesystem::path kModels = test::source_dir() / "models";

inline Tensor random(const Shape& shape, Rng& rng, DType dtype = DType::f32) {
  return cast(random_normal(shape, rng), dtype);
}

// A LoRA of every module that the spelling has a name for, with ranks that differ, and scales that do between modules:
// a fused one has one for its parts.
inline AdapterFile random_lora(const AdapterModules& modules, AdapterFormat format, DType dtype = DType::bf16,
                               uint64_t seed = 1) {
  AdapterFile file{.name = "random", .format = format, .metadata = {{"ss_output_name", "random"}}};
  Rng rng(seed);
  constexpr double kScales[] = {0.625, 1, 2, 0.75};
  for (size_t i = 0; i < modules.all().size(); ++i) {
    const NamedModule& module = modules.all()[i];
    if (module.matrix.rank() == 0) continue;
    for (const ModuleName* name : module.spelled(spelling_of(format))) {
      const int64_t rank = 1 + int64_t(file.loras.size() % 4);
      Shape down = module.matrix, up{module.matrix[0] / name->rows.of * int64_t(name->rows.parts.size()), rank};
      down[0] = rank;
      if (down.rank() == 4) up.push_back(1), up.push_back(1);
      file.loras[name->name] = {random(down, rng, dtype), random(up, rng, dtype), kScales[i % 4] * double(rank)};
    }
  }
  return file;
}

// The difference that an adapter adds to each linear's matrix, by path.
inline std::map<std::string, Tensor> changes(const AdapterModules& modules, const std::vector<LoraFile>& files) {
  std::map<std::string, std::vector<ModuleName>> names;
  for (const NamedModule& module : modules.all()) names[module.path] = module.names;
  Adapter adapter([&](const std::string& path) { return names.at(path); }, files);
  std::map<std::string, Tensor> all;
  for (const NamedModule& module : modules.all()) {
    if (module.matrix.rank() == 0) continue;
    const bool is_conv = module.matrix.rank() == 4;
    const auto layer = adapter.match(
        {{module.path, {module.matrix[1], module.matrix[0], is_conv ? int(module.matrix[2]) : 1, is_conv}}});
    if (layer && !is_conv) all[module.path] = layer->merged(zeros(module.matrix));
  }
  adapter.check_complete();
  return all;
}

inline double norm(const Tensor& x) {
  double sum = 0;
  for (const float v : x.to_vector()) sum += double(v) * double(v);
  return std::sqrt(sum);
}

inline void expect_same_changes(const std::map<std::string, Tensor>& found,
                                const std::map<std::string, Tensor>& expected, double tolerance = 1e-5) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [path, change] : expected)
    EXPECT_LE(norm(found.at(path) - change), tolerance * norm(change)) << path;
}

}  // namespace wick
