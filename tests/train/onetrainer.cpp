// Settings of OneTrainer: what Wick makes of each key.
#include "wick/train/foreign/onetrainer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/files.h"
#include "train/foreign_report.h"

namespace wick {
namespace {

using test::told;

class OneTrainerTest : public testing::Test {
 protected:
  // Settings for SDXL, with more of them, which begin with a comma.
  ForeignConfig explain(const std::string& more, const std::string& concepts = R"([{"path": "foxes"}])") {
    write_plain(file_, R"({"training_method": "LORA", "model_type": "STABLE_DIFFUSION_XL_10_BASE",
      "base_model_name": "stabilityai/stable-diffusion-xl-base-1.0", "learning_rate": 0.0003, "batch_size": 4,
      "layer_filter_preset": "attn-mlp", "resolution": "1024", "text_encoder": {"train": false},
      "text_encoder_2": {"train": false}, "unet": {"weight_dtype": "FLOAT_16"}, "concepts": )" +
                           concepts + more + "}");
    EXPECT_EQ(trainer_of(file_), Trainer::onetrainer);
    return explain_onetrainer(file_);
  }

  TemporaryDirectory folder_;
  const std::filesystem::path file_ = folder_ / "settings.json";
};

TEST_F(OneTrainerTest, AFileIsReadAsOneTrainerReadsIt) {
  const ForeignConfig read = explain("");
  read.check();
  const TrainConfig& c = read.config;
  EXPECT_EQ(c.dataset, std::vector<std::string>{"foxes"});
  EXPECT_EQ(c.rank.value, 16);
  EXPECT_EQ(c.alpha.value, 1);
  EXPECT_EQ(c.lr.value, 3e-4);
  EXPECT_EQ(c.warmup.value, 200);
  EXPECT_EQ(c.epochs, 100);
  EXPECT_EQ(c.batch_size, 4);
  EXPECT_EQ(c.resolution, std::vector<Resolution>{1024});
  EXPECT_EQ(c.targets, std::vector<std::string>{"unet.*attentions*"});
  EXPECT_EQ(c.dtype, DType::f16);
  EXPECT_EQ(c.save_dtype, DType::f32);
  EXPECT_EQ(c.weight_decay, 0.01);
  EXPECT_EQ(c.name, "model");
  EXPECT_EQ(c.output, "workspace/run");
  EXPECT_TRUE(c.caption_lines);
}

struct SettingRow {
  const char *more, *key, *told;
};
constexpr SettingRow kSettingRows[] = {
    {"", "learning_rate", "honoured: lr = 0.0003"},
    {"", "unet.weight_dtype", "honoured: "},
    {R"(, "optimizer": {"optimizer": "ADAMW_8BIT", "beta1": 0.9})", "optimizer.optimizer",
     "honoured: optimizer = \"adamw8bit\""},
    {R"(, "optimizer": {"optimizer": "ADAMW", "beta1": 0.8})", "optimizer.beta1", "honoured: betas = [0.8, 0.999]"},
    {R"(, "optimizer": {"optimizer": "ADAMW", "fused": true})", "optimizer.fused", "honoured: "},
    {R"(, "optimizer": {"optimizer": "ADAMW", "d_coef": 2.0, "block_wise": false})", "optimizer.d_coef",
     "idle: OneTrainer does not read it of ADAMW"},
    {R"(, "optimizer": {"optimizer": "ADAMW", "eps": 1e-06})", "optimizer.eps", "honoured: eps = 1e-06"},
    {R"(, "optimizer": {"optimizer": "ADAMW", "fused_back_pass": false})", "optimizer.fused_back_pass",
     "idle: changes nothing of Wick's"},
    {R"(, "optimizer": {"optimizer": "ADAFACTOR", "eps": 1e-30, "eps2": 0.01})", "optimizer.eps2",
     "honoured: eps = [1e-30, 0.01]"},
    {R"(, "optimizer": {"optimizer": "ADAFACTOR", "beta1": 0.9})", "optimizer.beta1",
     "refused: Wick's adafactor has beta1=none alone, found beta1=0.9"},
    {R"(, "optimizer": {"optimizer": "ADAFACTOR", "relative_step": true})", "optimizer.relative_step",
     "refused: OneTrainer gives Adafactor a rate, which it refuses beside relative steps; expected false"},
    {R"(, "optimizer": {"optimizer": "PRODIGY", "slice_p": 11})", "optimizer.slice_p",
     "honoured: prodigy_slice_p = 11"},
    {R"(, "optimizer": {"optimizer": "PRODIGY", "growth_rate": "inf"})", "optimizer.growth_rate",
     "honoured: prodigy_growth_rate = 0.0"},
    {R"(, "optimizer": {"optimizer": "PRODIGY", "beta3": 0.9})", "optimizer.beta3",
     "honoured: betas = [0.9, 0.999, 0.9]"},
    {R"(, "optimizer": {"optimizer": "SCHEDULE_FREE_ADAMW", "r": 1.0})", "optimizer.r",
     "honoured: schedule_free_r = 1.0"},
    {R"(, "optimizer": {"optimizer": "CAME"})", "optimizer.optimizer",
     "refused: expected ADAM, ADAMW, ADAM_8BIT, ADAMW_8BIT, LION, LION_8BIT, ADAFACTOR, PRODIGY or "
     "SCHEDULE_FREE_ADAMW, found \"CAME\""},
    {R"(, "loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": 7.0)", "loss_weight_strength",
     "honoured: min_snr_gamma = 7.0"},
    {R"(, "learning_rate_scheduler": "REX")", "learning_rate_scheduler",
     "refused: expected CONSTANT, LINEAR, COSINE or COSINE_WITH_HARD_RESTARTS, found \"REX\""},
    {R"(, "ema": "GPU", "ema_decay": 0.99)", "ema", "honoured: ema = 0.99"},
    {R"(, "save_every": 2, "save_every_unit": "EPOCH")", "save_every", "honoured: save_every_epochs = 2"},
    {R"(, "backup_after": 10)", "backup_after", "idle: a run keeps its state; --resume goes on with it"},
    {R"(, "peft_type": "OFT_2")", "peft_type", "refused: expected LORA, LOHA or LOKR, found \"OFT_2\""},
    {R"(, "rescale_noise_scheduler_to_zero_terminal_snr": false)", "rescale_noise_scheduler_to_zero_terminal_snr",
     "empty: asks for nothing"},
    {R"(, "rescale_noise_scheduler_to_zero_terminal_snr": true, "force_v_prediction": true)",
     "rescale_noise_scheduler_to_zero_terminal_snr", "honoured: prediction = \"v-zero-snr\""},
    {R"(, "rescale_noise_scheduler_to_zero_terminal_snr": true, "force_v_prediction": true)", "force_v_prediction",
     "idle: rescale_noise_scheduler_to_zero_terminal_snr decides"},
    {R"(, "min_noising_strength": 0.25)", "min_noising_strength", "honoured: min_timestep = 250"},
    {R"(, "max_noising_strength": 0.57)", "max_noising_strength", "honoured: max_timestep = 570"},
    {R"(, "max_noising_strength": 1.5)", "max_noising_strength",
     "refused: expected shares of the noise from 0 to 1, found \"0 to 1.5\""},
    {R"(, "sample_after": 2)", "sample_after", "idle: there is no file of samples"},
    {R"(, "samples": [{"prompt": "a fox"}], "sample_after": 2, "sample_after_unit": "EPOCH")", "sample_after",
     "honoured: sample_every_epochs = 2"},
    {R"(, "samples": [{"prompt": "a fox"}], "sample_after_unit": "NEVER")", "samples", "idle: there are no previews"},
    {R"(, "samples": [{"prompt": "a fox", "width": 0}])", "samples",
     "refused: settings.json: prompt 1: width: expected an integer from 1 to 16384, found \"0\""},
    {R"(, "zzz": 3)", "zzz", "idle: not a key of OneTrainer, so it does nothing there"}};

TEST_F(OneTrainerTest, EachKeyIsToldOf) {
  for (const SettingRow& row : kSettingRows) {
    SCOPED_TRACE(row.more);
    std::string found = told(explain(row.more), row.key);
    if (const size_t at = found.find(folder_.path().string()); at != found.npos)
      found.erase(at, folder_.path().string().size() + 1);
    EXPECT_EQ(found, row.told);
  }
}

// As OPTIMIZER_DEFAULT_PARAMETERS fills the file in, and as create.py has it where the file says nothing.
TEST_F(OneTrainerTest, ProdigyIsReadAsOneTrainerReadsIt) {
  const TrainConfig saved = explain(R"(, "optimizer": {"optimizer": "PRODIGY", "beta1": 0.9, "beta2": 0.999,
      "beta3": null, "eps": 1e-08, "weight_decay": 0.0, "decouple": true, "use_bias_correction": false,
      "safeguard_warmup": false, "d0": 1e-06, "d_coef": 1.0, "growth_rate": "inf", "fsdp_in_use": false,
      "slice_p": 11, "relative_step": false, "clip_threshold": null})")
                                .config;
  EXPECT_EQ(saved.optimizer, OptimizerKind::prodigy);
  EXPECT_EQ(saved.betas, (std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(saved.prodigy_slice_p, 11);
  EXPECT_TRUE(saved.prodigy_decouple);
  EXPECT_FALSE(saved.prodigy_use_bias_correction || saved.prodigy_safeguard_warmup);
  EXPECT_EQ(saved.weight_decay, 0);
  const TrainConfig bare = explain(R"(, "optimizer": {"optimizer": "PRODIGY"})").config;
  EXPECT_FALSE(bare.prodigy_decouple) << "a switch that is left out is off";
  EXPECT_EQ(bare.prodigy_slice_p, 1);
  EXPECT_EQ(explain(R"(, "optimizer": {"optimizer": "LION_8BIT"})").config.betas, (std::vector<double>{0.9, 0.999}));
  EXPECT_FALSE(explain(R"(, "optimizer": {"optimizer": "ADAFACTOR"})").config.adafactor_scale_parameter);
}

TEST_F(OneTrainerTest, ConceptsAreFolders) {
  const ForeignConfig two =
      explain("", R"([{"path": "a", "seed": 1}, {"path": "b", "seed": 2}, {"path": "c", "enabled": false}])");
  two.check();
  ASSERT_EQ(data_paths(two.config).size(), 2u);
  EXPECT_TRUE(data_paths(two.config)[1].ends_with("/b"));
  expect_error([&] { explain("", "[]").check(); }, {"concepts", "found none"});
}

TEST_F(OneTrainerTest, EachConceptHasSettingsOfItsOwn) {
  const ForeignConfig read = explain("", R"([
    {"path": "/a", "balancing": 2.0, "balancing_strategy": "REPEATS", "include_subdirectories": true,
     "text": {"enable_tag_shuffling": true, "keep_tags_count": 2},
     "image": {"enable_resolution_override": true, "resolution_override": "512x768"}},
    {"path": "/b", "loss_weight": 0.5, "text": {"tag_dropout_enable": true, "tag_dropout_mode": "RANDOM",
     "tag_dropout_probability": 0.25}, "image": {"resolution_override": "64"}}])");
  read.check();
  const PictureSources sources = read_datasets(
      read.config, {.channels = 4, .factor = 8, .side_step = 8, .bucket_step = 32, .native = 1024, .largest = 4096});
  ASSERT_EQ(sources.groups.size(), 2u);
  const PictureSubset &a = sources.groups[0].subsets.at(0), &b = sources.groups[1].subsets.at(0);
  EXPECT_EQ(sources.groups[0].resolutions.at(0).resolution, Resolution(512, 768));
  EXPECT_TRUE(sources.groups[0].resolutions[0].one && !sources.groups[1].resolutions.at(0).one);
  EXPECT_EQ(sources.groups[1].resolutions[0].resolution, Resolution(1024));
  EXPECT_EQ(a.repeats, 2);
  EXPECT_TRUE(a.captions.shuffle && a.captions.lines && a.nested && !b.nested);
  EXPECT_EQ(a.captions.keep_tokens, 2);
  EXPECT_EQ(b.captions.tag_dropout, 0.25);
  EXPECT_EQ(b.captions.keep_tokens, 1) << "OneTrainer's own";
  EXPECT_FALSE(b.captions.shuffle);
  EXPECT_EQ(b.loss_weight, 0.5);
  for (const auto& [concept_, part] :
       {std::pair(R"({"path": "a", "balancing": 0.5})", "balancing"),
        {R"({"path": "a", "text": {"prompt_source": "filename"}})", "prompt_source"},
        {R"({"path": "a", "text": {"tag_dropout_enable": true, "tag_dropout_probability": 0.1}})", "tag_dropout_mode"},
        {R"({"path": "a", "type": "VALIDATION"})", "type"}})
    expect_error([&] { explain("", fmt::format("[{}]", concept_)).check(); }, {"concepts[0]", part});
}

}  // namespace
}  // namespace wick
