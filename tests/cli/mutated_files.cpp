// Every field of every configuration that Wick reads, with values that no program writes: commands end by themselves,
// with one line where they fail.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "cli/hostile.h"
#include "cli/program.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/nn/adapter.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using test::expect_survived;
using test::hostile_values;
using test::run_command;

const fs::path kModels = test::source_dir() / "models";

// An eighth of the fields get 0, 10^9 or another value in a run: drawn anew in each run, and told by each failure.
// WICK_TEST_PERCENT of 200 and more gives every field 0, 10^9 and more values: 4000 takes all.
size_t drawn_values() {
  const char* const percent = std::getenv("WICK_TEST_PERCENT");
  return std::max<size_t>(1, size_t(percent ? std::atoi(percent) : 100) / 100);
}

std::vector<std::string> values_of_a_field(std::mt19937& random) {
  std::vector<std::string> values = hostile_values();
  std::shuffle(values.begin() + 2, values.end(), random);
  const size_t count = drawn_values();
  if (count == 1 && random() % 8 != 0) return {};
  if (count == 1) return {values[random() % 3]};
  values.resize(std::min(values.size(), count));
  return values;
}

// A model's folder whose configurations may be written, and whose other files are links, or are not there.
class Copy {
 public:
  Copy(const fs::path& model, bool weights) {
    for (const auto& entry : fs::recursive_directory_iterator(model)) {
      const fs::path name = entry.path().lexically_relative(model), to = folder_.path() / name;
      if (entry.is_directory()) {
        fs::create_directories(to);
      } else if (name.extension() == ".json") {
        fs::copy_file(entry.path(), to);
        files_.push_back(name);
      } else if (weights || name.extension() != ".safetensors") {
        fs::create_symlink(fs::absolute(entry.path()), to);
      }
    }
    std::ranges::sort(files_);
  }
  std::string path() const { return folder_.path().string(); }
  const std::vector<fs::path>& files() const { return files_; }

  // Calls run() with each field of each configuration changed.
  void each_change(std::mt19937& random, const std::function<void()>& run) const {
    for (const fs::path& name : files_) {
      const fs::path file = folder_.path() / name;
      const std::string whole = read_plain(file);
      const auto json = ordered_json::parse(whole);
      std::vector<ordered_json::json_pointer> fields;
      test::add_fields(json, ordered_json::json_pointer(), fields);
      for (const auto& field : fields)
        for (const std::string& value : values_of_a_field(random)) {
          SCOPED_TRACE(name.string() + " " + field.to_string() + " = " + value.substr(0, 60));
          write_plain(file, test::with_value(json, field, value));
          run();
          if (testing::Test::HasFatalFailure()) return;
        }
      write_plain(file, whole);
    }
  }

 private:
  TemporaryDirectory folder_;
  std::vector<fs::path> files_;
};

class MutatedFiles : public testing::Test {
 protected:
  MutatedFiles() {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("WICK_THREADS", "1", 1);
  }
  std::string out(const char* name) const { return (folder_ / name).string(); }

  TemporaryDirectory folder_;
  std::mt19937 random_{std::random_device{}()};
};

class MutatedModels : public MutatedFiles, public testing::WithParamInterface<const char*> {};

// All sizes come from the configurations.
TEST_P(MutatedModels, ArePlannedWithoutWeights) {
  const Copy model(kModels / GetParam(), /*weights=*/false);
  const std::vector<std::string> plan = {"plan", "--model", model.path(), "--resolution", "64"};
  const test::Ended whole = run_command(plan);
  ASSERT_EQ(whole.code, 0) << whole.out;
  model.each_change(random_, [&] { expect_survived(run_command(plan)); });
}

// Sizes are held against those of the weights.
TEST_P(MutatedModels, AreDrawnWith) {
  const Copy model(kModels / GetParam(), /*weights=*/true);
  const std::vector<std::string> draw = {"generate", "--model", model.path(), "--prompt",    "x",
                                         "--steps",  "1",       "--width",    "32",          "--height",
                                         "32",       "--out",   out("x.png"), "--overwrite", "--device=cpu"};
  const test::Ended whole = run_command(draw);
  ASSERT_EQ(whole.code, 0) << whole.out;
  model.each_change(random_, [&] { expect_survived(run_command(draw)); });
}

INSTANTIATE_TEST_SUITE_P(All, MutatedModels, testing::Values("tiny", "tiny-flux", "tiny-sd3"), [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST_F(MutatedFiles, LanguageModelsArePlannedAndWriteText) {
  const Copy model(kModels / "tiny-llm", /*weights=*/true);
  const std::vector<std::string> commands[] = {
      {"plan", "--model", model.path(), "--sequence-length", "64"},
      {"generate", "--model", model.path(), "--prompt", "x", "--max-tokens", "1", "--device", "cpu"}};
  for (const auto& command : commands) ASSERT_EQ(run_command(command).code, 0) << run_command(command).out;
  model.each_change(random_, [&] {
    for (const auto& command : commands) expect_survived(run_command(command));
  });
}

TEST_F(MutatedFiles, ConfigsOfEveryLanguageModel) {
  for (const char* name : {"llama2", "llama3", "llama_linear", "mistral", "qwen2", "qwen3"}) {
    const Copy model(kGolden / "llama" / name, /*weights=*/true);
    model.each_change(random_, [&] { expect_survived(run_command({"plan", "--model", model.path()})); });
  }
}

// Those of PEFT, beside the tensors.
TEST_F(MutatedFiles, ConfigsOfAdapters) {
  for (const auto& entry : fs::directory_iterator(kGolden / "adapters")) {
    if (!fs::exists(entry.path() / "adapter_config.json")) continue;
    const Copy adapter(entry.path(), /*weights=*/true);
    adapter.each_change(random_, [&] {
      expect_survived(run_command({"inspect", adapter.path()}));
      expect_survived(run_command({"merge", "--model", (kGolden / "adapters/base_model").string(), "--lora",
                                   adapter.path(), "--output", out("merged")}));
      fs::remove_all(out("merged"));
    });
  }
}

// Adapters with the model that each is for, by the goldens' own notes.
struct AdapterCase {
  fs::path folder, file;
  std::vector<std::string> forward;  // without --lora
};

std::vector<AdapterCase> adapter_cases(const std::string& out) {
  std::vector<AdapterCase> all;
  for (const auto& entry : fs::directory_iterator(kGolden / "adapters")) {
    if (!fs::exists(entry.path() / "case.json")) continue;
    const auto json = ordered_json::parse(read_plain(entry.path() / "case.json"));
    std::vector<std::string> forward = {"forward",
                                        "--model",
                                        (kGolden / json.at("model").get<std::string>()).string(),
                                        "--in",
                                        (kGolden / json.at("inputs").get<std::string>()).string(),
                                        "--out",
                                        out,
                                        "--overwrite"};
    const auto component = json.at("component").get<std::string>();
    forward.insert(forward.end(), {"--component", component.empty() ? "llama" : component});
    all.push_back({entry.path(), lora_weights(entry.path() / json.at("lora").get<std::string>()), forward});
  }
  std::ranges::sort(all, {}, &AdapterCase::folder);
  return all;
}

// A copy of an adapter with other tensors; a configuration beside it stays.
void expect_adapter_survives(const AdapterCase& of, const fs::path& folder,
                             const std::map<std::string, Tensor>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  const fs::path file = folder / of.file.filename();
  save_safetensors(file, tensors, metadata);
  expect_survived(run_command({"inspect", file.string()}));
  expect_survived(run_command({"convert", "--lora", file.string(), "--to", "comfy", "--output",
                               (folder / "converted.safetensors").string(), "--overwrite"}));
  std::vector<std::string> forward = of.forward;
  forward.insert(forward.end(), {"--lora", file.string()});
  expect_survived(run_command(forward));
}

// A tensor of each adapter gets another shape; WICK_TEST_PERCENT of 200 and more gives more tensors more shapes.
TEST_F(MutatedFiles, ShapesOfAdapters) {
  for (const AdapterCase& adapter : adapter_cases(out("y"))) {
    const SafetensorsFile file = SafetensorsFile::open(adapter.file);
    std::map<std::string, Tensor> tensors;
    std::vector<std::string> names;
    for (const auto& [name, info] : file.tensors())
      if (info.dtype) tensors[name] = file.load(name), names.push_back(name);
    if (const fs::path config = adapter.folder / "adapter_config.json"; fs::exists(config))
      fs::copy_file(config, folder_ / "adapter_config.json", fs::copy_options::overwrite_existing);
    std::ranges::shuffle(names, random_);
    names.resize(std::min<size_t>(names.size(), drawn_values()));
    const std::map<std::string, std::string> metadata(file.metadata().begin(), file.metadata().end());
    for (const std::string& name : names) {
      const Tensor whole = tensors[name];
      std::vector<Shape> shapes = {{}, {0}, {1}, {0, 0}, {1, 1, 1, 1, 1, 1}};
      for (int axis = 0; axis < whole.rank(); ++axis)
        for (const int64_t extent : {int64_t{0}, int64_t{1}, whole.dim(axis) + 1}) {
          shapes.push_back(whole.shape());
          shapes.back()[axis] = extent;
        }
      std::ranges::shuffle(shapes, random_);
      shapes.resize(std::min(shapes.size(), drawn_values()));
      for (const Shape& shape : shapes) {
        SCOPED_TRACE(adapter.file.string() + " " + name + " " + to_string(shape));
        tensors[name] = zeros(shape, is_float(whole.dtype()) ? whole.dtype() : DType::f32);
        expect_adapter_survives(adapter, folder_.path(), tensors, metadata);
      }
      tensors[name] = whole;
    }
    fs::remove(folder_ / "adapter_config.json");
  }
}

TEST_F(MutatedFiles, AdaptersOfRank0) {
  for (const AdapterCase& adapter : adapter_cases(out("y"))) {
    if (drawn_values() == 1 && random_() % 4 != 0) continue;
    if (const fs::path config = adapter.folder / "adapter_config.json"; fs::exists(config))
      fs::copy_file(config, folder_ / "adapter_config.json", fs::copy_options::overwrite_existing);
    const SafetensorsFile file = SafetensorsFile::open(adapter.file);
    const std::map<std::string, std::string> metadata(file.metadata().begin(), file.metadata().end());
    std::map<std::string, Tensor> of_rank_0;
    for (const auto& [name, info] : file.tensors()) {
      Shape shape = info.shape;
      if (shape.rank() >= 2) shape[name.find("down") != name.npos || name.find("_b") != name.npos ? 0 : 1] = 0;
      of_rank_0[name] = zeros(shape);
    }
    SCOPED_TRACE(adapter.file.string());
    expect_adapter_survives(adapter, folder_.path(), of_rank_0, metadata);
    fs::remove(folder_ / "adapter_config.json");
  }
}

// Sizes of parts in files of their own are those of their tensors.
TEST_F(MutatedFiles, ShapesOfModels) {
  struct Part {
    const char *model, *flag, *file;
  };
  constexpr Part kParts[] = {
      {"tiny", "--transformer", "models/tiny/unet/diffusion_pytorch_model.safetensors"},
      {"tiny", "--vae", "models/tiny/vae/diffusion_pytorch_model.safetensors"},
      {"tiny", "--vae", "tests/golden/layouts/vae.native.safetensors"},
      {"tiny", "--clip-l", "models/tiny/text_encoder/model.safetensors"},
      {"tiny", "--clip-l", "tests/golden/layouts/clip.native.safetensors"},
      {"tiny", "--clip-g", "models/tiny/text_encoder_2/model.safetensors"},
      {"tiny-flux", "--transformer", "models/tiny-flux/transformer/diffusion_pytorch_model.safetensors"},
      {"tiny-flux", "--transformer", "tests/golden/layouts/flux.native.safetensors"},
      {"tiny-flux", "--t5", "models/tiny-flux/text_encoder_2/model.safetensors"},
      {"tiny-flux", "--t5", "tests/golden/layouts/t5.native.safetensors"},
      {"tiny-sd3", "--transformer", "models/tiny-sd3/transformer/diffusion_pytorch_model.safetensors"},
      {"tiny-sd3", "--transformer", "tests/golden/layouts/sd3.native.safetensors"}};
  const fs::path changed = folder_ / "part.safetensors";
  for (const Part& part : kParts) {
    const SafetensorsFile file = SafetensorsFile::open(test::source_dir() / part.file);
    std::map<std::string, Tensor> tensors;
    std::vector<std::string> names;
    for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name), names.push_back(name);
    std::ranges::shuffle(names, random_);
    names.resize(std::min<size_t>(names.size(), 4 * drawn_values()));
    for (const std::string& name : names) {
      const Tensor whole = tensors[name];
      for (int axis = 0; axis < whole.rank(); ++axis) {
        Shape shape = whole.shape();
        shape[axis] = 0;
        SCOPED_TRACE(std::string(part.file) + " " + name + " " + to_string(shape));
        tensors[name] = zeros(shape, whole.dtype());
        save_safetensors(changed, tensors);
        expect_survived(run_command({"inspect", changed.string()}));
        expect_survived(run_command(
            {"plan", "--model", (kModels / part.model).string(), part.flag, changed.string(), "--resolution", "64"}));
      }
      tensors[name] = whole;
    }
  }
}

// Metadata of files: other programs' settings in JSON among them.
TEST_F(MutatedFiles, MetadataOfAdapters) {
  for (const AdapterCase& adapter : adapter_cases(out("y"))) {
    const SafetensorsFile file = SafetensorsFile::open(adapter.file);
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, info] : file.tensors())
      if (info.dtype) tensors[name] = file.load(name);
    std::map<std::string, std::string> metadata(file.metadata().begin(), file.metadata().end());
    for (auto& [key, text] : metadata) {
      const std::string whole = text;
      std::vector<std::string> changed = values_of_a_field(random_);
      if (const auto json = ordered_json::parse(whole, nullptr, /*allow_exceptions=*/false); json.is_object()) {
        std::vector<ordered_json::json_pointer> fields;
        test::add_fields(json, ordered_json::json_pointer(), fields);
        for (const auto& field : fields)
          for (const std::string& value : values_of_a_field(random_))
            changed.push_back(test::with_value(json, field, value));
      }
      for (const std::string& value : changed) {
        SCOPED_TRACE(adapter.file.string() + " " + key + " = " + value.substr(0, 200));
        text = value;
        expect_adapter_survives(adapter, folder_.path(), tensors, metadata);
      }
      text = whole;
    }
  }
}

// Every number of a GGUF file's metadata, as each of GGUF's types.
TEST_F(MutatedFiles, MetadataOfGguf) {
  const fs::path of = kGolden / "gguf/model.gguf", changed = folder_ / "model.gguf";
  const GgufFile file = GgufFile::open(of);
  std::vector<GgufEntry> tensors;
  for (const auto& [name, info] : file.tensors())
    if (info.dtype)  // else a type that the file only names
      tensors.push_back({name, *info.dtype, info.shape, [&file, name = name] { return file.load(name); }});
  const double kNaN = std::numeric_limits<double>::quiet_NaN();
  const std::vector<GgufValue> values = {uint32_t{0},
                                         uint32_t{1},
                                         uint32_t{1000000000},
                                         ~uint32_t{0},
                                         int32_t{-1},
                                         ~uint64_t{0},
                                         int64_t{-1},
                                         std::numeric_limits<int64_t>::max(),
                                         float(kNaN),
                                         1e38f,
                                         -1.0f,
                                         0.0f,
                                         -0.0f,
                                         1e308,
                                         kNaN,
                                         true,
                                         std::string(),
                                         std::string("x\n\33[31m"),
                                         GgufArray(std::vector<uint32_t>{}),
                                         GgufArray(std::vector<uint32_t>{0, 1000000000}),
                                         GgufArray(std::vector<float>{float(kNaN)}),
                                         GgufArray(std::vector<std::string>{"", "x"})};
  GgufMetadata::Entries entries = file.metadata().entries();
  for (auto& [key, value] : entries) {
    if (key == "general.alignment") continue;  // which the writer has for itself
    const GgufValue whole = value;
    for (const GgufValue& other : values) {
      SCOPED_TRACE(key + " = " + to_string(other));
      value = other;
      save_gguf(changed, entries, tensors);
      expect_survived(run_command({"inspect", changed.string()}));
      expect_survived(run_command({"plan", "--model", changed.string(), "--sequence-length", "64"}));
      expect_survived(run_command(
          {"generate", "--model", changed.string(), "--prompt", "x", "--max-tokens", "1", "--device", "cpu"}));
    }
    value = whole;
  }
}

}  // namespace
}  // namespace wick
