// Models and data whose files are not of the kind that they are named, say impossible things, or are for another model:
// each ends with a code of 1 and one line that names the file.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "wick/io/image.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

const fs::path kText = test::source_dir() / "models/tiny-llm";
const std::string kPrompt = " --prompt x --max-tokens 1 --device cpu";

// One line and exit code 1, within seconds: a hanging command is killed, and ends with 124.
void expect_refused(const std::string& arguments, const Words& words) {
  SCOPED_TRACE("wick " + arguments);
  const Outcome outcome = run_wick(arguments, "ulimit -v 4000000; timeout 60");
  expect_one_line(outcome, words);
  EXPECT_EQ(outcome.code, 1);
}

Outcome run_well(const std::string& arguments) {
  SCOPED_TRACE("wick " + arguments);
  const Outcome outcome = run_wick(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome;
}

class ModelFiles : public testing::Test {
 protected:
  // A copy for a test to spoil.
  fs::path copy(const fs::path& model) {
    const fs::path to = folder_ / ("model" + std::to_string(copies_++));
    fs::copy(model, to, fs::copy_options::recursive);
    return to;
  }
  fs::path pictures() {
    const fs::path to = folder_ / "pictures";
    fs::create_directories(to);
    for (const char* name : {"0001.png", "0001.jpg", "0001.webp", "0001.txt"})
      if (const fs::path file = test::source_dir() / "data/tiny-style" / name;
          fs::exists(file) && !fs::exists(to / name))
        fs::copy(file, to / name);
    return to;
  }
  std::string draw(const fs::path& model) const {
    fs::remove(folder_ / "x.png");
    return "generate --model " + model.string() + " --prompt x --steps 1 --device cpu --out " +
           (folder_ / "x.png").string();
  }
  std::string train(const fs::path& model, const fs::path& data) const {
    const char* const size = fs::exists(model / "model_index.json") ? " --resolution 64" : "";
    return "train --model " + model.string() + " --dataset " + data.string() + " --steps 1 --device cpu --output " +
           (folder_ / "out").string() + size;
  }
  std::string complete(const fs::path& model) const { return "generate --model " + model.string() + kPrompt; }

  const TemporaryDirectory folder_;

 private:
  int copies_ = 0;
};

// --- Things in a file's place that are not files ---

struct NoFile {
  const char* word;
  std::function<void(const fs::path&)> make;
};
const std::vector<NoFile> kNoFiles = {
    {"a named pipe", [](const fs::path& path) { ::mkfifo(path.c_str(), 0600); }},
    {"a device", [](const fs::path& path) { fs::create_symlink("/dev/zero", path); }},
};

// Puts each of these in the place of `file` for a while.
void with_no_files(const fs::path& file, const std::function<void(const std::string& word)>& run) {
  const fs::path kept = file.string() + ".kept";
  if (fs::exists(file)) fs::rename(file, kept);
  for (const NoFile& other : kNoFiles) {
    other.make(file);
    run(other.word);
    fs::remove(file);
  }
  if (fs::exists(kept)) fs::rename(kept, file);
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path().lexically_relative(folder));
  return files;
}

TEST_F(ModelFiles, ADiffusersFolderHoldsFiles) {
  const fs::path model = copy(kModel), data = pictures();
  for (const fs::path& file : files_in(model))
    with_no_files(model / file, [&](const std::string& word) {
      // Without its index a folder is not a model's.
      const Words words = file == "model_index.json" ? Words{"--model", model.string()} : Words{file.string(), word};
      // special_tokens_map.json is not read where tokenizer_config.json is complete, but it is part of the model.
      if (file.filename() != "special_tokens_map.json") expect_refused(draw(model), words);
      expect_refused(train(model, data), words);
    });
}

TEST_F(ModelFiles, ATransformersFolderHoldsFiles) {
  const fs::path model = copy(kText), data = folder_ / "x.jsonl";
  write_plain(data, "{\"text\": \"a b c d\"}\n");
  for (const char* file : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                           "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"})
    with_no_files(model / file, [&](const std::string& word) {
      expect_refused(complete(model), {file, word});
      expect_refused(train(model, data), {file, word});
    });
  fs::remove(model / "tokenizer.json");
  with_no_files(model / "tokenizer.model", [&](const std::string& word) {
    expect_refused(complete(model), {"tokenizer.model", word});
  });
}

TEST_F(ModelFiles, ShardsAreFiles) {
  const fs::path model = copy(kGolden / "llama/llama2");
  const std::string command = "forward --model " + model.string() + " --component llama --in " +
                              (model / "prefill.in.safetensors").string() + " --out " + (folder_ / "o").string();
  for (const char* file : {"config.json", "model.safetensors.index.json", "model-00002-of-00003.safetensors"})
    with_no_files(model / file, [&](const std::string& word) { expect_refused(command, {file, word}); });
}

TEST_F(ModelFiles, WhatAFlagNamesIsAFile) {
  const fs::path lora = copy(kGolden / "llama/llama2/adapter"), data = pictures(), there = folder_ / "there";
  const std::string text = complete(kText), base = draw(kModel);
  with_no_files(there, [&](const std::string& word) {
    expect_refused(base + " --lora " + there.string(), {"--lora", there.string(), word});
    expect_refused("inspect " + there.string(), {there.string()});
    expect_refused("generate --model " + there.string() + kPrompt, {"--model", there.string()});
    expect_refused(
        "forward --model " + kModel + " --component unet --in " + there.string() + " --out " + (folder_ / "o").string(),
        {"--in", there.string()});
    expect_refused(train(kText, there), {there.string(), word});
    expect_refused("eval --model tiny-llm --device cpu --dataset " + there.string(), {there.string(), word});
  });
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
    with_no_files(lora / file, [&](const std::string& word) {
      expect_refused("generate --model tiny-llm --lora " + lora.string() + kPrompt, {file, word});
    });
  for (const fs::path& file : files_in(data))
    with_no_files(data / file, [&](const std::string& word) {
      expect_refused(train(kModel, data), {file.string(), word});
    });
}

TEST_F(ModelFiles, ASocketOrAFolderIsNoFile) {
  const fs::path model = copy(kText), file = model / "generation_config.json";
  fs::remove(file);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string name = file.string();
  ASSERT_LT(name.size(), sizeof address.sun_path);
  std::copy(name.begin(), name.end(), address.sun_path);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  expect_refused(complete(model), {"generation_config.json", "a socket"});
  ::close(fd);
  fs::remove(file);
  fs::create_directory(file);
  expect_refused(complete(model), {"generation_config.json", "a directory"});
}

TEST_F(ModelFiles, LinksToFilesAreFollowed) {
  const fs::path model = copy(kText);
  for (const fs::path& file : files_in(model)) {
    fs::remove(model / file);
    fs::create_symlink(kText / file, model / file);
  }
  fs::create_symlink(model / "config.json", folder_ / "twice");
  EXPECT_EQ(run_well(complete(model) + " --temperature 0").out, run_well(complete(kText) + " --temperature 0").out);
}

// Sparse files: they take no room on the disk, and must take none in memory.
TEST_F(ModelFiles, SizesAreBounded) {
  const fs::path model = copy(kText), data = folder_ / "x.jsonl";
  for (const char* file : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "chat_template.jinja"}) {
    const fs::path kept = folder_ / "kept";
    if (fs::exists(model / file)) fs::rename(model / file, kept);
    write_plain(model / file, "");
    fs::resize_file(model / file, uint64_t{8} << 30);
    expect_refused(complete(model), {file, "longer than"});
    fs::remove(model / file);
    if (fs::exists(kept)) fs::rename(kept, model / file);
  }
  write_plain(data, "{\"text\": \"a b c d\"}\n");
  fs::resize_file(data, uint64_t{16} << 30);
  expect_refused("eval --model tiny-llm --device cpu --dataset " + data.string(), {"x.jsonl: line 2"});
}

// --- Values in a config ---

struct Change {
  const char* file;
  json values;  // a null here becomes one there
  Words words;
};

void set(const fs::path& file, const json& values) {
  json config = read_json(file);
  for (const auto& [key, value] : values.items()) config[key] = value;
  write_plain(file, to_text(config));
}

const double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

TEST_F(ModelFiles, PicturesModelsThatWickDoesNotKnowAreNamed) {
  const json none;
  const std::vector<Change> rows = {
      {"unet", {{"addition_embed_type", none}, {"cross_attention_dim", 768}}, {"Stable Diffusion 1.x"}},
      {"unet",
       {{"addition_embed_type", none}, {"cross_attention_dim", 768}, {"in_channels", 9}},
       {"Stable Diffusion 1.x", "inpainting"}},
      {"unet", {{"addition_embed_type", none}, {"cross_attention_dim", 1024}}, {"Stable Diffusion 2.x"}},
      {"unet", {{"in_channels", 9}}, {"SDXL for inpainting"}},
      {"unet", {{"in_channels", 8}}, {"SDXL for editing"}},
      {"unet", {{"encoder_hid_dim_type", "text_proj"}, {"encoder_hid_dim", 4096}}, {"Kolors"}},
      {"unet", {{"time_cond_proj_dim", 256}}, {"consistency"}},
      {"unet", {{"_class_name", "UNetSpatioTemporalConditionModel"}}, {"UNetSpatioTemporalConditionModel"}},
      {"unet", {{"projection_class_embeddings_input_dim", 60}}, {"refiner", "5 time ids"}},
      {"vae", {{"scaling_factor", -1}}, {"vae/config.json: scaling_factor", "-1"}},
      {"vae", {{"scaling_factor", 0}}, {"scaling_factor", "0"}},
      {"vae", {{"scaling_factor", kNaN}}, {"scaling_factor", "NaN"}},
      {"vae", {{"scaling_factor", kInfinity}}, {"scaling_factor", "Infinity"}},
      {"vae", {{"shift_factor", 1e300}}, {"shift_factor"}},
      {"unet", {{"norm_eps", 1e300}}, {"norm_eps", "0 to 1"}},
      {"text_encoder", {{"layer_norm_eps", -1}}, {"layer_norm_eps", "0 to 1"}},
  };
  for (const Change& row : rows) {
    const fs::path model = copy(kModel), file = model / row.file / "config.json";
    set(file, row.values);
    expect_refused(draw(model), row.words);
    expect_refused("plan --device cpu --model " + model.string(), row.words);
  }
}

// As Stability publishes it: without the first text encoder.
TEST_F(ModelFiles, TheRefinerIsNamed) {
  const fs::path model = copy(kModel);
  for (const char* part : {"text_encoder", "tokenizer"}) fs::remove_all(model / part);
  set(model / "model_index.json", {{"text_encoder", {json(), json()}}, {"tokenizer", {json(), json()}}});
  set(model / "unet/config.json", {{"cross_attention_dim", 20}, {"projection_class_embeddings_input_dim", 60}});
  for (const std::string& command :
       {draw(model), train(model, pictures()), "plan --device cpu --model " + model.string()})
    expect_refused(command, {"refiner", "5 time ids"});
}

TEST_F(ModelFiles, NumbersThatNoModelHasAreRefused) {
  const std::vector<Change> rows = {
      {"config.json", {{"rms_norm_eps", 1e300}}, {"rms_norm_eps", "1e+300", "0 to 1"}},
      {"config.json", {{"rms_norm_eps", -1e-6}}, {"rms_norm_eps"}},
      {"config.json", {{"rms_norm_eps", kNaN}}, {"rms_norm_eps", "NaN"}},
      {"config.json", {{"rope_theta", 1e300}}, {"rope_theta"}},
      {"config.json", {{"rope_theta", kInfinity}}, {"rope_theta", "Infinity"}},
      {"config.json", {{"rope_theta", 0}}, {"rope_theta"}},
      {"config.json", {{"initializer_range", 1e300}}, {"initializer_range"}},
      {"config.json", {{"attention_dropout", 2}}, {"attention_dropout"}},
      {"config.json", {{"hidden_size", kInfinity}}, {"hidden_size", "Infinity"}},
      {"config.json", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 1e300}}}}, {"rope_scaling.factor"}},
      {"config.json", {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}, {"full_attention"}},
      {"config.json", {{"layer_types", json::array({"full_attention"})}}, {"layer_types", "4"}},
      {"config.json",
       {{"layer_types", {"full_attention", "full_attention", "full_attention", "sliding_attention"}}},
       {"layer_types[3]", "sliding_window"}},
      {"tokenizer_config.json", {{"added_tokens_decoder", {{"NaN", kNaN}}}}, {"added_tokens_decoder"}},
  };
  for (const Change& row : rows) {
    const fs::path model = copy(kText);
    set(model / row.file, row.values);
    expect_refused(complete(model), row.words);
  }
}

// Settings for training alone are not errors where the model only runs.
TEST_F(ModelFiles, TrainingsSettingsCountInTraining) {
  const fs::path model = copy(kText), data = folder_ / "x.jsonl";
  write_plain(data, "{\"text\": \"a b c d\"}\n");
  set(model / "config.json", {{"initializer_range", 0}, {"attention_dropout", 0.1}});
  EXPECT_EQ(run_well(complete(model) + " --temperature 0").out, run_well(complete(kText) + " --temperature 0").out);
  expect_refused(train(model, data), {"config.json", "attention_dropout", "0.1"});
  expect_refused("plan --device cpu --model " + model.string(), {"config.json", "attention_dropout", "0.1"});
  set(model / "config.json", {{"attention_dropout", 0}});
  expect_refused(train(model, data) + " --train full --from-scratch", {"config.json", "initializer_range"});
  run_well(train(model, data));
}

TEST_F(ModelFiles, AKeyThatStandsTwiceIsRefused) {
  const fs::path pictures_model = copy(kModel), text_model = copy(kText), data = folder_ / "x.jsonl";
  const auto twice = [&](const fs::path& file, const std::string& command) {
    const std::string whole = read_plain(file);
    write_plain(file, "{\"twice\": 1, \"twice\": 1, " + whole.substr(whole.find('{') + 1));
    expect_refused(command, {file.string(), "\"twice\" stands twice"});
    write_plain(file, whole);
  };
  for (const char* file : {"model_index.json", "scheduler/scheduler_config.json", "unet/config.json", "vae/config.json",
                           "text_encoder/config.json", "tokenizer/vocab.json", "tokenizer/tokenizer_config.json"})
    twice(pictures_model / file, draw(pictures_model));
  for (const char* file : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"})
    twice(text_model / file, complete(text_model));
  write_plain(data, "{\"text\": \"good\"}\n{\"text\": \"a\", \"text\": \"b\"}\n");
  expect_refused(train(kText, data), {"x.jsonl: line 2", "\"text\" stands twice"});
  write_plain(data, R"({"messages": [{"role": "user", "content": "a", "content": "b"}]})");
  expect_refused(train(kText, data), {"x.jsonl: line 1", "\"content\" stands twice"});
  write_plain(data, "{\"text\": \"a\", \"score\": NaN}\n");
  expect_refused(train(kText, data), {"x.jsonl: line 1", "JSON"});
  write_plain(data, "{\"text\": " + std::string(100000, '['));
  expect_refused(train(kText, data), {"x.jsonl: line 1", "deep"});
}

TEST_F(ModelFiles, ShardsStandBesideTheirIndex) {
  const std::string index = "model.safetensors.index.json", name = "model-00001-of-00003.safetensors";
  for (const char* bad : {"../x.safetensors", "/etc/passwd", "", ".", "..", "sub/x.safetensors",
                          "model-00001-of-00003.safetensors\\u0000x"}) {
    const fs::path model = copy(kGolden / "llama/llama2");
    std::string text = read_plain(model / index);
    for (size_t at = 0; (at = text.find(name, at)) != text.npos; at += std::string(bad).size())
      text.replace(at, name.size(), bad);
    write_plain(model / index, text);
    expect_refused("forward --model " + model.string() + " --component llama --in " +
                       (model / "prefill.in.safetensors").string() + " --out " + (folder_ / "o").string(),
                   {index, "plain file name"});
  }
}

// --- Schedulers ---

TEST_F(ModelFiles, SchedulersOfOtherNoiseAreRefused) {
  const fs::path model = copy(kModel), config = model / "scheduler/scheduler_config.json", data = pictures();
  const std::string plan = "plan --device cpu --model " + model.string();
  for (const char* name : {"FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler", "FlowMatchLCMScheduler",
                           "EDMEulerScheduler", "EDMDPMSolverMultistepScheduler", "TCDScheduler",
                           "LMSDiscreteScheduler", "KDPM2DiscreteScheduler", "DEISMultistepScheduler",
                           "CosineDPMSolverMultistepScheduler", "EulerDiscrete", "MyScheduler"}) {
    set(config, {{"_class_name", name}});
    for (const std::string& command : {draw(model), train(model, data), plan})
      expect_refused(command, {"scheduler_config.json", name, "DPMSolver"});
  }
  // Without the name diffusers takes the pipeline's.
  set(config, {{"_class_name", json()}});
  run_well(draw(model));
  set(model / "model_index.json", {{"scheduler", {"diffusers", "EDMEulerScheduler"}}});
  expect_refused(draw(model), {"model_index.json", "EDMEulerScheduler"});
  set(model / "model_index.json", {{"scheduler", json()}});
  expect_refused(draw(model), {"scheduler_config.json", "_class_name", "model_index.json"});
  set(config, {{"_class_name", 5}});
  expect_refused(draw(model), {"scheduler_config.json: _class_name", "5"});

  const fs::path other = copy(kModel);
  for (const json& values : std::vector<json>{{{"prediction_type", "sample"}},
                                              {{"prediction_type", "flow_prediction"}},
                                              {{"rescale_betas_zero_snr", true}},
                                              {{"use_flow_sigmas", true}},
                                              {{"use_lu_lambdas", true}},
                                              {{"thresholding", true}},
                                              {{"trained_betas", {0.1, 0.2}}},
                                              {{"beta_schedule", "squaredcos_cap_v2"}},
                                              {{"timestep_spacing", "random"}},
                                              {{"beta_end", kInfinity}}}) {
    fs::copy(fs::path(kModel) / "scheduler/scheduler_config.json", other / "scheduler/scheduler_config.json",
             fs::copy_options::overwrite_existing);
    set(other / "scheduler/scheduler_config.json", values);
    for (const std::string& command : {draw(other), train(other, data)})
      expect_refused(command, {"scheduler_config.json", values.begin().key()});
  }
}

TEST_F(ModelFiles, GenerateSaysWhichSchedulerTheFolderNames) {
  const fs::path model = copy(kModel), config = model / "scheduler/scheduler_config.json", data = pictures();
  std::vector<uint8_t> picture;
  for (const char* name :
       {"EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler", "DDIMScheduler", "DDPMScheduler", "PNDMScheduler",
        "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "DPMSolverSDEScheduler",
        "UniPCMultistepScheduler", "HeunDiscreteScheduler"}) {
    set(config, {{"_class_name", name}, {"lambda_min_clipped", -kInfinity}, {"solver_order", 2}});
    const Outcome outcome = run_well(draw(model));
    EXPECT_NE(outcome.out.find("--sampler euler (the folder names " + std::string(name) + ")"), std::string::npos)
        << outcome.out;
    const std::vector<uint8_t> drawn = read_image(folder_ / "x.png").rgb;
    if (picture.empty()) picture = drawn;
    EXPECT_EQ(drawn, picture) << name;  // the sampler is --sampler's
    fs::remove(folder_ / "x.png");
  }
  run_well(train(model, data));
}

TEST_F(ModelFiles, AConsistencyModelIsDrawnByItsSamplerAndNotTrained) {
  const fs::path model = copy(kModel), data = pictures();
  set(model / "scheduler/scheduler_config.json", {{"_class_name", "LCMScheduler"}, {"original_inference_steps", 40}});
  const std::string draw = "generate --model " + model.string() + " --prompt x --width 64 --height 64 --device cpu";
  const auto drawn = [&](const std::string& flags) {
    const fs::path out = folder_ / "x.png";
    fs::remove(out);
    const Outcome outcome = run_well(draw + flags + " --out " + out.string());
    return std::pair(outcome.out, read_image(out).rgb);
  };
  const auto [said, picture] = drawn("");
  EXPECT_NE(said.find("in 4 steps with --sampler lcm (the folder names LCMScheduler)"), std::string::npos) << said;
  EXPECT_EQ(picture, drawn(" --sampler lcm --steps 4 --cfg 1").second);
  EXPECT_NE(picture, drawn(" --cfg 2").second);
  EXPECT_NE(drawn(" --sampler euler").first.find("in 4 steps with --sampler euler"), std::string::npos);
  run_well(draw + " --steps 40 --out " + (folder_ / "all.png").string());
  expect_refused(
      draw + " --steps 41 --out " + (folder_ / "y.png").string(),
      {"--sampler lcm: expected 1 to 40 steps (original_inference_steps of ", "scheduler_config.json", "41"});
  for (const std::string& command : {train(model, data), "plan --device cpu --model " + model.string()})
    expect_refused(command, {"scheduler_config.json: LCMScheduler is of a model distilled"});
  set(model / "scheduler/scheduler_config.json", {{"clip_sample", true}});
  expect_refused(draw + " --out " + (folder_ / "y.png").string(), {"scheduler_config.json: clip_sample", "true"});
}

// tokenizer.json alone, and -Infinity in a scheduler's config: tests/golden/sdxl_today.
TEST_F(ModelFiles, AFolderOfTodaysDiffusersIsTheSameModel) {
  const fs::path model = copy(kModel);
  const auto drawn = [&] {
    run_well(draw(model));
    const std::vector<uint8_t> picture = read_image(folder_ / "x.png").rgb;
    fs::remove(folder_ / "x.png");
    return picture;
  };
  const std::vector<uint8_t> before = drawn();
  for (const char* part : {"tokenizer", "tokenizer_2", "scheduler"}) {
    fs::remove_all(model / part);
    fs::copy(kGolden / "sdxl_today" / part, model / part);
  }
  ASSERT_NE(read_plain(model / "scheduler/scheduler_config.json").find("-Infinity"), std::string::npos);
  EXPECT_EQ(drawn(), before);
  run_well(train(model, pictures()));
  set(model / "scheduler/scheduler_config.json", {{"beta_start", -kInfinity}});
  expect_refused(draw(model), {"scheduler_config.json: beta_start", "-Infinity"});
}

// --- Values that are not numbers ---

TEST_F(ModelFiles, WeightsThatAreNoNumbersAreNotMerged) {
  const fs::path model = copy(kGolden / "llama/qwen2"), merged = folder_ / "merged";
  const SafetensorsFile file = SafetensorsFile::open(kGolden / "llama/qwen2/model.safetensors");
  for (const std::string spoilt : {"model.layers.1.mlp.up_proj.weight", "model.norm.weight"}) {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
    Tensor values = cast(tensors.at(spoilt), DType::f32);
    values.data<float>()[3] = float(kNaN);
    tensors[spoilt] = cast(values, file.tensors().at(spoilt).dtype.value());
    save_safetensors(model / "model.safetensors", tensors, {{"format", "pt"}});
    expect_refused(
        "merge --model " + model.string() + " --lora " + (model / "adapter").string() + " --output " + merged.string(),
        {"model.safetensors", spoilt, "not finite numbers"});
    EXPECT_FALSE(fs::exists(merged));
  }
}

TEST_F(ModelFiles, WeightsThatAreNoNumbersAreTold) {
  const fs::path model = copy(kText), data = folder_ / "x.jsonl";
  write_plain(data, "{\"text\": \"Once upon a time\"}\n");
  const SafetensorsFile file = SafetensorsFile::open(kText / "model.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
  const std::string spoilt = "model.layers.1.mlp.up_proj.weight";
  Tensor matrix = cast(tensors.at(spoilt), DType::f32);
  for (const float bad : {float(kNaN), float(kInfinity)}) {
    matrix.data<float>()[7] = bad;
    tensors[spoilt] = cast(matrix, file.tensors().at(spoilt).dtype.value());
    save_safetensors(model / "model.safetensors", tensors, {{"format", "pt"}});
    const std::string eval = "eval --device cpu --model " + model.string() + " --dataset " + data.string();
    expect_refused(eval, {model.string(), "not a finite number", spoilt});
    expect_refused(eval + " --json", {"not a finite number"});
    for (const char* dtype : {"", " --dtype q8_0", " --dtype f32"})
      expect_refused("convert --model " + model.string() + " --output " + (folder_ / "m.gguf").string() + dtype,
                     {spoilt, "not finite numbers"});
    EXPECT_FALSE(fs::exists(folder_ / "m.gguf"));
    expect_refused(complete(model), {"logits are not"});
    expect_refused(complete(model) + " --temperature 0", {"logits are not"});
  }
}

}  // namespace
}  // namespace wick
