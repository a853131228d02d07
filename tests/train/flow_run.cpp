// Whole runs of `wick train` on tiny models of rectified flow. They are what docs/replay.md says: another program with
// the same streams of random numbers has the same losses and the same LoRA (tools/golden/replay.py).
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "device.h"
#include "flow_folder.h"
#include "source_dir.h"
#include "train/process.h"
#include "wick/io/safetensors.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/train/trainer.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden";

TrainConfig config_of(const SafetensorsFile& golden, const fs::path& model, const fs::path& output) {
  const auto told = [&](const char* key) { return golden.metadata().at(key); };
  return {.model = model.string(),
          .output = output.string(),
          .dataset = {(kGolden / "replay/pictures").string()},
          .rank = std::stoll(told("rank")),
          .alpha = std::stod(told("alpha")),
          .steps = std::stoll(told("steps")),
          .batch_size = std::stoll(told("batch_size")),
          .lr = std::stod(told("lr")),
          .max_grad_norm = std::stod(told("max_grad_norm")),
          .caption_dropout = std::stod(told("caption_dropout")),
          .t5_tokens = std::stoll(told("t5_tokens")),
          .resolution = {std::stoll(told("resolution"))},
          .bucket_step = std::stoll(told("bucket_step")),
          .no_upscale = true,
          .seed = std::stoll(told("seed")),
          .save_dtype = DType::f32,
          .device = std::string(test::backend().name())};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double(a[i]) - double(b[i]), 2);
  return std::sqrt(sum);
}

// The up factors begin at zero, so that all of them was learnt; of the down factors far less.
void expect_lora(const SafetensorsFile& lora, const SafetensorsFile& golden) {
  size_t factors = 0;
  for (const auto& [name, info] : lora.tensors()) {
    if (name.ends_with(".alpha")) continue;
    ASSERT_TRUE(golden.tensors().contains(name)) << name;
    const std::vector<float> trained = lora.load(name).to_vector(), expected = golden.load(name).to_vector();
    const double size = distance(expected, std::vector<float>(expected.size()));
    EXPECT_LE(distance(trained, expected), (name.find("lora_up") != name.npos ? 1e-3 : 1e-4) * size) << name;
    ++factors;
  }
  const size_t others = golden.tensors().contains("val_losses") ? 3 : 2;
  EXPECT_EQ(factors + others, golden.tensors().size()) << "losses and norms beside them";
}

template <class Change>
void expect_replayed(const std::string& name, const fs::path& model, const Change& change) {
  const SafetensorsFile golden = SafetensorsFile::open(kGolden / "replay" / (name + ".safetensors"));
  const TemporaryDirectory folder;
  TrainConfig config = config_of(golden, model, folder / "out");
  change(config, golden);
  ASSERT_EQ(train(config, model), RunResult::finished);

  const std::vector<float> losses = golden.load("losses").to_vector(), norms = golden.load("grad_norms").to_vector();
  std::istringstream metrics(read_plain(folder / "out/metrics.jsonl"));
  size_t step = 0;
  std::vector<double> held_back;
  for (std::string line; std::getline(metrics, line); ++step) {
    ASSERT_LT(step, losses.size());
    const auto record = nlohmann::json::parse(line);
    EXPECT_NEAR(record["loss"].get<double>() / double(losses[step]), 1, 1e-4) << "step " << step + 1;
    EXPECT_NEAR(record["grad_norm"].get<double>() / double(norms[step]), 1, 1e-3) << "step " << step + 1;
    if (record.contains("val_loss")) held_back.push_back(record["val_loss"]);
  }
  const std::vector<float> validated =
      golden.tensors().contains("val_losses") ? golden.load("val_losses").to_vector() : std::vector<float>();
  ASSERT_EQ(held_back.size(), validated.size());
  for (size_t i = 0; i < validated.size(); ++i) EXPECT_NEAR(held_back[i] / double(validated[i]), 1, 1e-4);
  EXPECT_EQ(step, losses.size());
  expect_lora(SafetensorsFile::open(folder / "out/lora.safetensors"), golden);
}

class FlowRun : public testing::Test {
 protected:
  Outcome run(const fs::path& model, const std::string& output, const std::vector<std::string>& more) const {
    std::vector<std::string> all{"train", "--model", model.string()};
    const auto add = [&](std::string flag, std::string value) { all.insert(all.end(), {flag, value}); };
    if (std::ranges::find(more, "--dataset") == more.end()) add("--dataset", (kGolden / "replay/pictures").string());
    add("--output", (folder / output).string());
    add("--device", std::string(test::backend().name()));
    add("--t5-tokens", "24");
    if (std::ranges::find(more, "--resolution") == more.end()) add("--resolution", "64");
    if (std::ranges::find(more, "--steps") == more.end()) add("--steps", "2");
    all.insert(all.end(), more.begin(), more.end());
    return ChildProcess(all, folder.path()).wait();
  }

  const TemporaryDirectory folder;
  const test::FlowFolder sd3{"sd3"}, flux{"flux_pictures"};
};

fs::path transformer(const fs::path& model) { return model / "transformer/diffusion_pytorch_model.safetensors"; }

void keep(TrainConfig&, const SafetensorsFile&) {}

TEST_F(FlowRun, OfSd3IsReplayed) { expect_replayed("sd3", sd3.path(), keep); }

TEST_F(FlowRun, OfFluxIsReplayed) { expect_replayed("flux", flux.path(), keep); }

const fs::path kDataSets = kGolden / "replay/data/set.toml";

// Tags, lines, mirrors, crops, colours, masks, regularisation and weights (tools/golden/replay_data.py).
TEST_F(FlowRun, OfDataSetsIsReplayed) {
  expect_replayed("data/sd3", sd3.path(), [](TrainConfig& config, const SafetensorsFile& golden) {
    config.dataset = {kDataSets.string()};
    config.masked_loss = true;
    config.prior_loss_weight = std::stod(golden.metadata().at("prior_loss_weight"));
    config.no_upscale = false;
    config.val = {(kGolden / "replay/data/val.toml").string()};
    config.val_every = 6;
  });
}

// The settings that a golden was made with, as flags.
void set_flags(TrainConfig& config, const std::string& flags) {
  std::istringstream words(flags);
  std::string key;
  for (std::string word; words >> word;) {
    const bool is_flag = word.starts_with("--");
    if (is_flag) std::ranges::replace(key = word.substr(2), '-', '_');
    const TrainOption& option = *find_option(key);
    if (!is_flag || option.is_switch()) option.set(config, {is_flag ? "true" : word});
  }
}

// Losses, their weights, noises, dropout of ranks and modules, limits of norms (tools/golden/replay_objective.py).
TEST_F(FlowRun, ObjectivesAreReplayed) {
  for (const char* name :
       {"sdxl-snr", "sdxl-debiased", "sdxl-l1", "sdxl-v", "sdxl-zero-snr", "sd3-cosmap", "sd3-sqrt", "sd3-squared"}) {
    SCOPED_TRACE(name);
    const bool is_flow = std::string_view(name).starts_with("sd3");
    expect_replayed(std::string("objective/") + name, is_flow ? sd3.path() : kGolden / "sdxl",
                    [](TrainConfig& config, const SafetensorsFile& golden) {
                      config.dataset = {(kGolden / "replay/objective/pictures").string()};
                      set_flags(config, golden.metadata().at("flags"));
                    });
  }
}

// By the encoders or from the disk, alone or with another run beside it: the same bits.
TEST_F(FlowRun, EncodingsAreSharedOnDisk) {
  const auto with = [&](const std::string& cache, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--rank", "2", "--dataset", kDataSets.string(), "--masked-loss", "--cache", cache});
    return more;
  };
  const std::string shared = (folder / "shared").string();
  ASSERT_EQ(run(sd3.path(), "none", with("none")).code, 0);
  EXPECT_FALSE(fs::exists(folder / "none/cache"));
  ASSERT_EQ(run(sd3.path(), "first", with(shared)).code, 0);
  EXPECT_FALSE(fs::exists(folder / "first/cache"));
  const Outcome second = run(sd3.path(), "second", with(shared));
  EXPECT_EQ(second.code, 0) << second.err;
  // Two foxes and their mirrors, three animals; boats come as they are. The empty caption, and captions in variants.
  const size_t all = size_t(std::distance(fs::directory_iterator(shared), fs::directory_iterator{}));
  EXPECT_GT(all, 7u + 1u);
  EXPECT_NE(second.out.find(std::to_string(all) + " of " + std::to_string(all) + " encodings were in " + shared),
            std::string::npos)
      << second.out;
  for (const auto& file : fs::directory_iterator(shared)) {  // one of them
    write_plain(file.path(), "x");
    break;
  }
  EXPECT_NE(run(sd3.path(), "third", with(shared)).out.find("1 encoding in " + shared + " was of another version"),
            std::string::npos);
  ASSERT_EQ(run(sd3.path(), "own", {"--rank", "2", "--dataset", kDataSets.string(), "--masked-loss"}).code, 0);
  EXPECT_TRUE(fs::exists(folder / "own/cache"));
  for (const char* other : {"first", "second", "third", "own"})
    EXPECT_EQ(tensors_of(folder / "none/lora.safetensors"), tensors_of(folder / other / "lora.safetensors")) << other;
  // A text encoder that is trained is never out of date.
  const std::vector<std::string> trained = {"--targets", "text_encoder.*.q_proj", "transformer.*.qkv", "--lr", "1e-2"};
  ASSERT_EQ(run(sd3.path(), "text none", with("none", trained)).code, 0);
  for (const char* name : {"text first", "text second"})
    ASSERT_EQ(run(sd3.path(), name, with(shared, trained)).code, 0);
  EXPECT_EQ(tensors_of(folder / "text none/lora.safetensors"), tensors_of(folder / "text second/lora.safetensors"));
}

// Neither their order nor their augmentation touches the run, and times are made ahead for FLUX.
TEST_F(FlowRun, HeldBackPicturesChangeNothing) {
  for (const fs::path& model : {sd3.path(), flux.path()}) {
    const std::string name = model == sd3.path() ? "sd3" : "flux";
    const std::vector<std::string> settings = {"--rank", "2", "--steps", "3", "--lr", "1e-2", "--lora-dropout", "0.5"};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), settings.begin(), settings.end());
      return more;
    };
    ASSERT_EQ(run(model, name + " plain", with({})).code, 0);
    const Outcome outcome = run(
        model, name + " val",
        with({"--val", (kDataSets.parent_path() / "boats").string(), "--val-every", "1", "--caption-dropout", "0"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("Validation: 2 pictures."), std::string::npos) << outcome.out;
    EXPECT_EQ(tensors_of(folder / (name + " plain") / "lora.safetensors"),
              tensors_of(folder / (name + " val") / "lora.safetensors"));
    const Outcome again =
        run(model, name + " again", with({"--val", (kDataSets.parent_path() / "boats").string(), "--val-every", "3"}));
    const auto last = [&](const std::string& output) { return logged(folder / output).back(); };
    EXPECT_NE(last(name + " val").find("val_loss"), std::string::npos);
    EXPECT_EQ(last(name + " val"), last(name + " again")) << "whenever it is measured";
  }
}

TEST_F(FlowRun, OfDataSetsGoesOnWithTheSameBits) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--rank", "2", "--dataset", kDataSets.string(), "--masked-loss", "--accumulate", "2"});
    return more;
  };
  const Outcome whole = run(sd3.path(), "whole", with({"--steps", "7"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.out.find("animals: 3 pictures × 1, of regularisation"), std::string::npos) << whole.out;
  for (const char* steps : {"1", "3", "6", "7"})
    ASSERT_EQ(run(sd3.path(), "parts", with({"--steps", steps, steps[0] == '1' ? "--no-graph" : "--resume"})).code, 0);
  EXPECT_EQ(tensors_of(folder / "whole/lora.safetensors"), tensors_of(folder / "parts/lora.safetensors"));
  const Outcome other = run(sd3.path(), "parts", with({"--steps", "8", "--resume", "--prior-loss-weight", "0.5"}));
  EXPECT_NE(other.err.find("--prior-loss-weight 1.0, this run has 0.5"), std::string::npos) << other.err;
}

TEST_F(FlowRun, OnSchnellSaysWhatItBreaks) {
  ASSERT_EQ(run(flux.path(), "dev", {"--rank", "1"}).out.find("schnell"), std::string::npos);
  const fs::path file = flux.path() / "transformer/config.json";
  std::string config = read_plain(file);
  const std::string dev = "\"guidance_embeds\": true";
  write_plain(file, config.replace(config.find(dev), dev.size(), "\"guidance_embeds\": false"));
  fs::remove(transformer(flux.path()));  // of dev: that is found out behind the remark
  const Outcome outcome = run(flux.path(), "out", {"--rank", "1"});
  EXPECT_NE(outcome.out.find("schnell draws in 4 steps because it was distilled"), std::string::npos) << outcome.out;
}

TEST_F(FlowRun, TellsWhatItCutsBeforeItReadsTheModel) {
  fs::remove(transformer(sd3.path()));
  const Outcome outcome = run(sd3.path(), "out", {});
  EXPECT_EQ(outcome.code, 1);
  const char* cut = "d.txt: the caption takes 60 tokens; the last 37 of them are cut, since the model reads 23.";
  EXPECT_NE(outcome.out.find(cut), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("transformer"), std::string::npos) << outcome.err;
}

TEST_F(FlowRun, TellsAllDamagedPicturesBeforeItReadsTheModel) {
  fs::copy(kGolden / "replay/pictures", folder / "damaged");
  for (const char* name : {"a.png", "c.png"}) {
    std::string png = read_plain(folder / "damaged" / name);
    png[60] = char(~png[60]);  // behind its header, which is whole
    write_plain(folder / "damaged" / name, png);
  }
  fs::remove_all(sd3.path() / "text_encoder" / "model.safetensors");
  const Outcome outcome = run(sd3.path(), "out", {"--dataset", (folder / "damaged").string()});
  expect_one_line(outcome, {"damaged: 2 faults: (1) a.png: the PNG", "(2) c.png: the PNG", "remove the picture"});
}

TEST_F(FlowRun, GoesOnAtSeveralResolutionsWithTheSameBits) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--rank", "2", "--resolution", "64", "32"});
    return more;
  };
  const Outcome whole = run(sd3.path(), "whole", with({}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.out.find("5 pictures, shown 10 times an epoch,"), std::string::npos) << whole.out;
  ASSERT_EQ(run(sd3.path(), "halves", with({"--steps", "1"})).code, 0);
  ASSERT_EQ(run(sd3.path(), "halves", with({"--resume"})).code, 0);
  EXPECT_EQ(tensors_of(folder / "whole/lora.safetensors"), tensors_of(folder / "halves/lora.safetensors"));
  const Outcome other = run(sd3.path(), "halves", {"--rank", "2", "--resume"});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find("--resolution [64, 32], this run has 64"), std::string::npos) << other.err;
}

// Streamed, recomputed and resident, each goes on where another stopped. Interrupted once for all.
TEST_F(FlowRun, StreamedWeightsGiveTheSameBits) {
  for (const fs::path& model : {sd3.path(), flux.path()})
    for (const char* quantize : {"none", "fp8"}) {
      const std::string name = (model == sd3.path() ? "sd3 " : "flux ") + std::string(quantize);
      const auto trained = [&](const std::string& kind, std::vector<std::string> more) {
        more.insert(more.end(), {"--rank", "2", "--bf16", "--quantize", quantize});
        const Outcome outcome = run(model, name + kind, more);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return tensors_of(folder / (name + kind) / "lora.safetensors");
      };
      const std::string resident = trained("resident", {});
      EXPECT_EQ(resident, trained("all", {"--stream-blocks", "all", "--stream-text-encoder"})) << name;
      const std::vector<std::string> host = {"--checkpoint-blocks", "all", "--checkpoints-on-host", "--stream-blocks",
                                             "all"};
      EXPECT_EQ(resident, trained("host", host)) << name;
      trained("halves", {"--steps", "1"});
      EXPECT_EQ(resident, trained("halves", {"--stream-blocks", "1", "--checkpoint-blocks", "1", "--resume"})) << name;
    }
  const Outcome outcome = run(flux.path(), "out", {"--stream-blocks", "1000"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("--stream-blocks: expected at most "), std::string::npos) << outcome.err;
}

// Kinds that are trained.
enum class Kind { lora, dora_of_outputs, dora_of_inputs, loha, loha_dense, loha_dora, lokr, lokr_dora, count };

Tensor drawn(const Shape& shape, uint64_t seed, float deviation) {
  Rng rng(seed);
  return random_normal(shape, rng) * deviation;
}

// Of a module with `out` outputs and `in` inputs, as kohya's and LyCORIS' files spell it.
std::map<std::string, Tensor> factors_of(Kind kind, int64_t out, int64_t in, uint64_t seed) {
  const auto loha = [&](int64_t rank) -> std::map<std::string, Tensor> {
    return {{".hada_w1_a", drawn({out, rank}, seed, 1)},
            {".hada_w1_b", drawn({rank, in}, seed + 1, 1)},
            {".hada_w2_a", drawn({out, rank}, seed + 2, 1)},
            {".hada_w2_b", drawn({rank, in}, seed + 3, 1)}};
  };
  const std::map<std::string, Tensor> lora = {{".lora_down.weight", drawn({3, in}, seed, 1)},
                                              {".lora_up.weight", drawn({out, 3}, seed + 1, 1)},
                                              {".alpha", full({}, 2)}},
                                      lokr = {{".lokr_w1", drawn({4, 2}, seed, 1)},
                                              {".lokr_w2", drawn({out / 4, in / 2}, seed + 1, 1)}};
  const auto with_magnitude = [&](std::map<std::string, Tensor> all, const Shape& shape) {
    all[".dora_scale"] = drawn(shape, seed + 5, 2) + 4.0f;
    return all;
  };
  switch (kind) {
    case Kind::lora:
      return lora;
    case Kind::dora_of_outputs:
      return with_magnitude(lora, {out, 1});
    case Kind::dora_of_inputs:
      return with_magnitude(lora, {1, in});
    case Kind::loha:
      return loha(2);
    case Kind::loha_dense:
      return loha(9);
    case Kind::loha_dora:
      return with_magnitude(loha(2), {out, 1});
    case Kind::lokr:
      return lokr;
    default:
      return with_magnitude(lokr, {out, 1});
  }
}

// Files that split q, k and v, of one kind or of kinds in turn: further training begins with the loss that the model
// has with the adapter in its weights.
TEST_F(FlowRun, PartsOfFusedLayersBeginAsTheyMerge) {
  const auto first_loss = [&](const fs::path& model, const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--steps", "1", "--lr", "1e-30"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Outcome outcome = run(model, name, flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? nlohmann::json::parse(read_plain(folder / name / "metrics.jsonl"))["loss"].get<double>()
                             : 0;
  };
  const auto count = size_t(Kind::count);
  for (const fs::path& model : {sd3.path(), flux.path()}) {
    const std::string family = model == sd3.path() ? "sd3 " : "flux ";
    const double base = first_loss(model, family + "base", {"--rank", "2"});
    const SafetensorsFile weights = SafetensorsFile::open(transformer(model));
    for (size_t mix = 0; mix <= count; ++mix) {
      SCOPED_TRACE(family + std::to_string(mix));
      std::map<std::string, Tensor> file;
      size_t module = mix == count ? 0 : mix;
      for (const auto& [name, info] : weights.tensors()) {
        const bool is_part = name.find(".attn") != name.npos || name.find("proj_mlp") != name.npos;
        if (!is_part || info.shape.rank() != 2 || name.find("_out.") != name.npos) continue;
        const std::string path = "transformer." + name.substr(0, name.rfind('.'));
        for (const auto& [suffix, tensor] : factors_of(Kind(module % count), info.shape[0], info.shape[1], 10 * module))
          file[path + suffix] = tensor;
        module += mix == count ? 1 : count;
      }
      const std::string name = family + std::to_string(mix);
      const fs::path split = folder / (name + ".safetensors"), merged = folder / (name + " merged");
      save_safetensors(split, file);
      const Outcome outcome =
          ChildProcess({"merge", "--model", model.string(), "--lora", split.string(), "--output", merged.string()},
                       folder.path())
              .wait();
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      const double want = first_loss(merged, name + " base", {"--rank", "2"});
      constexpr double kTolerance = 1e-5;
      EXPECT_GT(std::abs(want / base - 1), 20 * kTolerance) << "the adapter changes the loss";
      EXPECT_NEAR(first_loss(model, name + " further", {"--from", split.string()}) / want, 1, kTolerance);
    }
  }
}

// Under the names and with all the tensors that it had, the table of positions among them.
TEST_F(FlowRun, AWholeTransformerLoadsAgain) {
  const Outcome outcome = run(sd3.path(), "out", {"--train", "full", "--save-dtype", "f32", "--lr", "1e-3"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const SafetensorsFile before = SafetensorsFile::open(transformer(sd3.path())),
                        after = SafetensorsFile::open(transformer(folder / "out/model"));
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
  for (const auto& [name, info] : before.tensors()) {
    ASSERT_TRUE(after.tensors().contains(name)) << name;
    const bool same = after.load(name).to_vector() == before.load(name).to_vector();
    EXPECT_EQ(same, name == "pos_embed.pos_embed") << name;
  }
  const Outcome again = run(folder / "out/model", "again", {"--train", "full"});
  EXPECT_EQ(again.code, 0) << again.err;
}

}  // namespace
}  // namespace wick
