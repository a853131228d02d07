// docs/defaults.md against the program's own tables, for every model of pictures that Wick knows and every optimizer.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>

#include "io/files.h"
#include "source_dir.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Row = std::vector<std::string>;

// The cells behind a model's name.
std::map<std::string, Row> documented() {
  std::map<std::string, Row> rows;
  std::istringstream page(read_plain(test::source_dir() / "docs/defaults.md"));
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `") || line.starts_with("| model")) continue;
    std::istringstream cells(line.substr(2));
    std::string model, cell;
    std::getline(cells, model, '|');
    Row& row = rows[model.substr(1, model.rfind('`') - 1)];
    while (std::getline(cells, cell, '|')) row.push_back(cell.substr(1, cell.size() - 2));
  }
  return rows;
}

Row row_of(const ModelDefaults& defaults) {
  TrainConfig config{.model = "x", .output = "x", .dataset = {"x"}};
  resolve(config);
  const auto text = [](auto value) { return fmt::format("{}", value); };
  return {text(config.rank.value),
          text(config.alpha.value),
          text(config.lr.value),
          text(config.steps),
          text(defaults.resolution),
          defaults.t5_tokens > 0 ? text(defaults.t5_tokens) : "-",
          text(name_of(defaults.drawing.sampler)),
          text(defaults.drawing.steps),
          text(defaults.drawing.cfg),
          defaults.drawing.guidance ? text(*defaults.drawing.guidance) : "-"};
}

TEST(ModelDefaults, AreThoseOfTheDocument) {
  const std::map<std::string, Row> rows = documented();
  EXPECT_EQ(rows.size(), model_defaults().size());
  for (const DiffusionFamily& family : diffusion_families())
    for (const KnownModel& known : family.known) {
      if (known.repository.empty()) continue;  // a tiny one
      ASSERT_TRUE(rows.contains(known.name)) << known.name;
      EXPECT_EQ(rows.at(known.name), row_of(defaults_of(known.name))) << known.name;
    }
}

TEST(ModelDefaults, SamplersAreThoseOfTheDocument) {
  const std::string page = read_plain(test::source_dir() / "docs/defaults.md");
  for (const auto& [name, kind] : kSamplers)
    EXPECT_NE(page.find(fmt::format("\n| {} | ", name)), std::string::npos) << name;
}

TEST(OptimizerDefaults, AreThoseOfTheDocument) {
  const std::string page = read_plain(test::source_dir() / "docs/defaults.md");
  const Parameter factor{"a", zeros({16, 4096}).trainable()};
  for (size_t i = 0; i < split_names(names_of(OptimizerKind{})).size(); ++i) {
    const auto kind = OptimizerKind(i);
    const OptimizerOptions options = OptimizerOptions::of(kind);
    size_t states = 0;
    for (const Optimizer::State& s : Optimizer({factor}, options).states())
      if (s.name.ends_with(".a") && s.name != "param.a") states += size_t(bytes_of(s.dtype, s.shape));
    const std::string betas =
        options.rule.beta1 == 0 ? "-" : fmt::format("{}, {}", options.rule.beta1, options.rule.beta2);
    const std::string row = fmt::format("\n| {} | {} | {} | {:.0f} |", name_of(kind), default_lr(kind), betas,
                                        double(states) / double(factor.value.numel()));
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

// The table is what the models' own files say, where they say it.
TEST(ModelDefaults, AreWhatKnownModelsAreDrawnWith) {
  for (const ModelDefaults& expected : model_defaults()) {
    const std::unique_ptr<Diffusion> model = open_diffusion(find_known(std::string(expected.model))->without_files());
    const DrawingDefaults drawing = model->drawing_defaults();
    EXPECT_EQ(
        std::tuple(drawing.steps, drawing.cfg, drawing.guidance, drawing.sampler),
        std::tuple(expected.drawing.steps, expected.drawing.cfg, expected.drawing.guidance, expected.drawing.sampler))
        << expected.model;
    EXPECT_EQ(model->latents().native, expected.resolution) << expected.model;
    EXPECT_EQ(model->t5_tokens(), expected.t5_tokens) << expected.model;
  }
}

DrawingDefaults drawn(const fs::path& model) { return open_diffusion(model)->drawing_defaults(); }

// A tiny SD3.5 as medium, and without its second attentions as large.
TEST(ModelDefaults, FollowTheFilesAndTheNameOfTurbo) {
  const TemporaryDirectory folder;
  const fs::path golden = test::source_dir() / "tests/golden/sd3";
  EXPECT_EQ(drawn(golden).steps, 50);
  EXPECT_EQ(drawn(golden).sampler, SamplerKind::dpmpp_2m);
  for (const auto& [name, steps] : {std::pair{"large", 40}, {"turbo", 40}, {"my-sd3.5_large_turbo", 4}}) {
    const fs::path model = folder / name;
    fs::copy(golden, model, fs::copy_options::recursive);
    fs::remove(model / "transformer/diffusion_pytorch_model.safetensors");
    std::string config = read_plain(model / "transformer/config.json");
    const size_t list = config.find("\"dual_attention_layers\"");
    config.replace(list, config.find(']', list) + 1 - list, "\"dual_attention_layers\": []");
    write_plain(model / "transformer/config.json", config);
    EXPECT_EQ(drawn(model).steps, steps) << name;
    EXPECT_EQ(drawn(model).cfg, steps == 4 ? 1 : 4.5f) << name;
  }
}

}  // namespace
}  // namespace wick
