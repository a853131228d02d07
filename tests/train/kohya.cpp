// Option files of kohya's scripts, and other trainers' conventions as presets.
#include "wick/train/foreign/kohya.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"
#include "train/foreign_report.h"
#include "wick/train/presets.h"

namespace wick {
namespace {

using test::told;

namespace fs = std::filesystem;

class KohyaTest : public testing::Test {
 protected:
  ForeignConfig read(const std::string& text) const {
    write_plain(file_, text);
    return read_kohya_config(file_);
  }
  TrainConfig config(const std::string& more) const { return read(kLeast + more).config; }
  void expect_refused(const std::string& more, std::initializer_list<std::string_view> parts) const {
    expect_error([&] { read(kLeast + more); }, parts);
    expect_error([&] { read(kLeast + more); }, {file_.string()});
  }
  static ForeignConfig seed(const char* name) {
    return read_kohya_config(test::source_dir() / "fuzz/corpus/kohya_config" / name);
  }

  const std::string kLeast = "train_data_dir = 'pictures'\nresolution = 512\n";
  TemporaryDirectory folder_;
  const fs::path file_ = folder_ / "kohya.toml";
};

std::string toml_of(const TrainConfig& config, const char* key) { return find_option(key)->toml(config); }

// The defaults of kohya's parser, not Wick's.
TEST_F(KohyaTest, LeavesOutWhatKohyaWouldDefault) {
  const TrainConfig c = config("");
  EXPECT_EQ(c.rank.value, 4);
  EXPECT_EQ(c.alpha.value, 1);
  EXPECT_EQ(c.steps, 1600);
  EXPECT_EQ(c.lr.value, 2e-6);
  EXPECT_EQ(c.caption_extension, ".caption");
  EXPECT_TRUE(c.no_bucket);
  EXPECT_EQ(c.dtype, DType::f32);
  EXPECT_EQ(c.save_dtype, DType::f32);
  EXPECT_EQ(c.targets,
            (std::vector<std::string>{"unet.*.attentions.*", "text_encoder.*layers.*", "text_encoder_2.*layers.*"}));
}

TEST_F(KohyaTest, SdxlIsReadAsKohyaReadsIt) {
  const ForeignConfig read = seed("sdxl.toml");
  const TrainConfig& c = read.config;
  EXPECT_EQ(c.rank.value, 8);
  EXPECT_EQ(c.alpha.value, 4);
  EXPECT_EQ(c.conv_rank, 4);
  EXPECT_EQ(c.conv_alpha, 2);
  EXPECT_EQ(c.rank_dropout, 0.1);
  EXPECT_EQ(toml_of(c, "lr"), R"([0.0002, "text_encoder.*=1e-05", "text_encoder_2.*=1e-05"])")
      << "networks.lora has the first rate for both";
  EXPECT_EQ(c.optimizer, OptimizerKind::adamw8bit);
  EXPECT_EQ(c.weight_decay, 0.1);
  EXPECT_EQ(c.lr_schedule, LrSchedule::cosine_with_restarts);
  EXPECT_EQ(c.lr_scheduler_num_cycles, 2);
  EXPECT_EQ(c.warmup.value, 2);
  EXPECT_EQ(c.steps, 6);
  EXPECT_EQ(c.batch_size, 2);
  EXPECT_EQ(c.resolution, std::vector<Resolution>{64});
  EXPECT_FALSE(c.no_bucket);
  EXPECT_EQ(c.min_bucket_reso, 32);
  EXPECT_EQ(c.max_bucket_reso, 128);
  EXPECT_TRUE(c.shuffle_caption);
  EXPECT_EQ(c.min_snr_gamma, 5);
  EXPECT_EQ(c.noise_offset, 0.05);
  EXPECT_EQ(c.save_dtype, DType::f16);
  EXPECT_EQ(c.seed, 42);
  EXPECT_EQ(c.name, "fox");
  EXPECT_EQ(told(read, "network_dim"), "honoured: rank = 8");
  EXPECT_EQ(told(read, "xformers"), "idle: attention is always fused");
  EXPECT_EQ(read.count(KeyUse::idle), 5u);
}

TEST_F(KohyaTest, FluxIsReadAsKohyaReadsIt) {
  const TrainConfig c = seed("flux.toml").config;
  EXPECT_EQ(c.model, "flux1-dev.safetensors");
  EXPECT_EQ(c.vae, "ae.safetensors");
  EXPECT_EQ(c.dataset, std::vector<std::string>{"set.toml"});
  EXPECT_EQ(c.targets, (std::vector<std::string>{"transformer.double_blocks.*", "transformer.single_blocks.*",
                                                 "text_encoder.*layers.*", "text_encoder_2.*"}));
  EXPECT_EQ(toml_of(c, "lr"), R"([0.0001, "text_encoder.*=5e-05", "text_encoder_2.*=1e-06"])");
  EXPECT_EQ(c.lora_plus.value, 4);
  EXPECT_EQ(c.optimizer, OptimizerKind::adafactor);
  EXPECT_EQ(c.weight_decay, 0);
  EXPECT_EQ(c.lr_schedule, LrSchedule::constant);
  EXPECT_EQ(c.warmup.value, 0.1);
  EXPECT_EQ(c.epochs, 10);
  EXPECT_EQ(c.steps, 0);
  EXPECT_EQ(c.keep_last, 3);
  EXPECT_EQ(c.timestep_shift, "3.1582");
  EXPECT_EQ(c.timestep_std, 0.9);
  EXPECT_EQ(c.train_guidance, 1);
  EXPECT_EQ(c.loss_type, LossType::smooth_l1);
  EXPECT_EQ(c.quantize, Quantize::fp8);
  EXPECT_EQ(c.stream_blocks, "18");
  EXPECT_EQ(c.dtype, DType::bf16);
}

TEST_F(KohyaTest, FluxTimesAreThoseOfEachSampling) {
  const auto flux = [&](const std::string& more) {
    return config("ae = 'ae'\nmodel_prediction_type = 'raw'\n" + more);
  };
  EXPECT_EQ(flux("").timesteps, TimestepKind::uniform);
  EXPECT_EQ(flux("").timestep_shift, "3");
  EXPECT_EQ(flux("").train_guidance, 3.5);
  EXPECT_EQ(flux("timestep_sampling = 'uniform'").timestep_shift, "1");
  EXPECT_EQ(flux("timestep_sampling = 'sigmoid'").timestep_mean, "0");
  EXPECT_EQ(flux("timestep_sampling = 'flux_shift'").timestep_shift, "auto");
  EXPECT_EQ(flux("weighting_scheme = 'mode'").timesteps, TimestepKind::mode);
  EXPECT_EQ(read(kLeast + "ae = 'ae'").remarks.size(), 1u) << "kohya's default is told";
  expect_refused("ae = 'ae'\nmodel_prediction_type = 'sigma_scaled'", {"model_prediction_type", "raw", "sigma_scaled"});
  expect_refused("ae = 'ae'\ntimestep_sampling = 'x'", {"timestep_sampling", "flux_shift", "\"x\""});
}

TEST_F(KohyaTest, Sd3LossIsOfPictures) {
  const TrainConfig c = seed("sd3.toml").config;
  EXPECT_EQ(c.weighting_scheme, WeightingScheme::sigma_squared);
  EXPECT_NEAR(std::stod(c.timestep_mean), 0.5 + std::log(3), 1e-12);
  EXPECT_EQ(c.timestep_std, 1.2);
  EXPECT_EQ(c.t5_tokens, 256);
  EXPECT_TRUE(c.targets.empty()) << "the denoiser's own";
  EXPECT_EQ(c.optimizer, OptimizerKind::prodigy);
  EXPECT_EQ(c.weight_decay, 0);
  EXPECT_EQ(config("clip_g = 'g'\nweighting_scheme = 'sigma_sqrt'").weighting_scheme, WeightingScheme::none);
  expect_refused("clip_g = 'g'\nweighting_scheme = 'cosmap'", {"weighting_scheme", "cosmap"});
}

// Each of kohya's scripts leaves the options of other models alone, whatever they say.
TEST_F(KohyaTest, OptionsOfOtherModelsMeanNothing) {
  const std::string of_flows =
      "t5xxl = 't5'\nt5xxl_max_token_length = 512\napply_t5_attn_mask = true\nclip_l = 'l'\n"
      "guidance_scale = 1.0\ntimestep_sampling = 'nonsense'\ndiscrete_flow_shift = 3.1\nmodel_prediction_type = 'x'\n"
      "weighting_scheme = 'x'\nlogit_mean = 0.0\nclip_l_dropout_rate = 0.5\n";
  const ForeignConfig sdxl = read(kLeast + of_flows + "seed = 1\n");
  EXPECT_EQ(sdxl.count(KeyUse::honoured), 3u);
  EXPECT_EQ(sdxl.count(KeyUse::idle), 11u);
  EXPECT_EQ(told(sdxl, "apply_t5_attn_mask"), "idle: is for SD3 and FLUX");
  EXPECT_EQ(told(sdxl, "guidance_scale"), "idle: is for FLUX");
  EXPECT_EQ(told(sdxl, "clip_l_dropout_rate"), "idle: is for SD3");
  EXPECT_EQ(sdxl.config.t5, "");
  EXPECT_FALSE(sdxl.config.t5_mask);
  EXPECT_EQ(sdxl.config.train_guidance, TrainConfig().train_guidance);

  const std::string of_sdxl =
      "min_snr_gamma = 5\nnoise_offset = 0.1\nmultires_noise_iterations = 6\nv_parameterization = true\n"
      "debiased_estimation_loss = true\n";
  for (const std::string& other : {std::string("ae = 'ae'\n"), std::string("clip_g = 'g'\n")}) {
    const ForeignConfig read = this->read(kLeast + other + of_sdxl);
    EXPECT_EQ(told(read, "min_snr_gamma"), "idle: is for SDXL");
    EXPECT_EQ(told(read, "v_parameterization"), "idle: is for SDXL");
    EXPECT_EQ(read.config.min_snr_gamma, 0);
    EXPECT_EQ(read.config.noise_offset, 0);
    EXPECT_EQ(read.config.multires_noise_iterations, 0);
  }
  EXPECT_EQ(config(of_sdxl).min_snr_gamma, 5);
  EXPECT_EQ(config(of_sdxl).prediction, PredictionSetting::v);
  const TrainConfig zero =
      config("v_parameterization = true\nzero_terminal_snr = true\nscale_v_pred_loss_like_noise_pred = true");
  EXPECT_EQ(zero.prediction, PredictionSetting::v_zero_snr);
  EXPECT_TRUE(zero.scale_v_pred_loss_like_noise_pred);
}

TEST_F(KohyaTest, DtypesHaveAllTheirNames) {
  EXPECT_EQ(config("save_precision = 'fp16'").save_dtype, DType::f16);
  EXPECT_EQ(config("save_precision = 'bfloat16'").save_dtype, DType::bf16);
  EXPECT_EQ(config("mixed_precision = 'fp16'").dtype, DType::f16);
  expect_refused("save_precision = 'fp8'", {"save_precision", "f32, bf16, f16", "fp8"});
}

TEST_F(KohyaTest, WhatCannotBeHonouredIsRefusedByName) {
  expect_refused("zero_terminal_snr = true", {"zero_terminal_snr", "expected v_parameterization"});
  expect_refused("token_warmup_step = 3", {"token_warmup_step", "leave it out"});
  expect_refused("max_token_length = 300", {"max_token_length", "from 75 to 225"});
  expect_refused("resume = 'state'", {"resume", "--resume"});
  expect_refused("network_module = 'networks.dylora'", {"network_module", "networks.lora", "networks.dylora"});
  expect_refused("network_module = 'lycoris.kohya'\nnetwork_args = ['train_norm=True']",
                 {"network_args", "train_norm"});
  expect_refused("network_args = ['algo']", {"network_args", "KEY=VALUE"});
  expect_refused("optimizer_type = 'CAME'", {"optimizer_type", "AdamW8bit", "Adafactor has small states", "CAME"});
  expect_refused("optimizer_type = 'DAdaptAdam'", {"optimizer_type", "Prodigy finds the rate too", "DAdaptAdam"});
  expect_refused("optimizer_type = 'prodigyplus.ProdigyPlusScheduleFree'",
                 {"optimizer_type", "AdamWScheduleFree needs no schedule", "ProdigyPlus"});
  expect_refused("optimizer_type = 'prodigyopt.AdamW'", {"optimizer_type", "prodigyopt.AdamW"});
  expect_refused("optimizer_type = 'transformers.optimization.Adafactor'", {"optimizer_args", "relative_step=False"});
  expect_refused("optimizer_args = ['betas=0.9']", {"optimizer_args", "betas: expected two", "betas=0.9"});
  expect_refused("optimizer_args = ['betas=0.9,2']", {"optimizer_args", "betas: expected a number", "'2'"});
  expect_refused("optimizer_args = ['amsgrad=True']", {"optimizer_args", "amsgrad=false alone", "amsgrad=True"});
  expect_refused("optimizer_args = ['d_coef=2']", {"optimizer_args", "adamw has no such argument", "d_coef=2"});
  expect_refused("optimizer_type = 'Prodigy'\noptimizer_args = ['d_coef=2,3']", {"d_coef: expected one value"});
  expect_refused("optimizer_type = 'torch.optim.Adam'\noptimizer_args = ['weight_decay=0.1']",
                 {"optimizer_args", "joins the gradients", "weight_decay=0.1"});
  expect_refused("lr_scheduler = 'rex'", {"lr_scheduler", "cosine-with-restarts", "rex"});
  expect_refused("save_model_as = 'ckpt'", {"save_model_as", "safetensors", "ckpt"});
  expect_refused("mixed_precision = 'fp8'", {"mixed_precision", "bf16", "fp8"});
  expect_refused("network_dim = 'big'", {"network_dim", "an integer", "big"});
  expect_refused("text_encoder_lr = ['x']", {"text_encoder_lr", "numbers"});
  expect_refused("network_train_unet_only = true\nnetwork_train_text_encoder_only = true", {"neither"});
  expect_refused("dataset_config = 'a.toml'", {"train_data_dir or dataset_config", "both"});
  expect_refused("[a]\nseed = 1\n[b]\nseed = 2", {"seed", "once"});
  expect_error([&] { read("train_data_dir = 'a'\nresolution = '512,768,1024'"); }, {"resolution", "512,768,1024"});
  expect_error([&] { read(kLeast + "zero_terminal_snr = true\nv2 = true\nin_json = 'x'"); },
               {"in_json", "2 more are refused", "--explain-config"});
  expect_error([&] { read("train_data_dir = 'a'"); }, {"resolution is missing"});
}

struct KohyaRow {
  const char *option, *key, *told;
};

// Keys with what Wick makes of them, of an SDXL file: R1 of the faults that users met.
constexpr KohyaRow kKohyaRows[] = {
    {"noise_ofset = 0.1", "noise_ofset",
     "idle: not a key of kohya's scripts, so it does nothing there; did you mean noise_offset?"},
    {"epoch = 10", "epoch", "idle: of kohya's GUI; the scripts leave it alone"},
    {"noise_offset_type = 'Original'", "noise_offset_type", "idle: of kohya's GUI; the scripts leave it alone"},
    {"max_train_epochs = 3\nmax_train_steps = 100", "max_train_epochs", "honoured: epochs = 3"},
    {"max_train_epochs = 3\nmax_train_steps = 100", "max_train_steps", "idle: max_train_epochs wins"},
    {"max_token_length = 75", "max_token_length", "honoured: max_token_length = 75"},
    {"max_token_length = 225", "max_token_length", "honoured: max_token_length = 225"},
    {"max_token_length = 225\nae = 'x'", "max_token_length", "idle: is for SDXL"},
    {"max_token_length = 150\ntraining_shift = 1", "max_token_length", "idle: is for SDXL"},
    {"min_timestep = 200", "min_timestep", "honoured: min_timestep = 200"},
    {"max_timestep = 500\ntraining_shift = 2", "max_timestep", "honoured: max_timestep = 500"},
    {"max_timestep = 500\nae = 'x'", "max_timestep", "idle: is for SDXL and SD3"},
    {"max_timestep = 1001", "max_timestep", "refused: expected an integer from 0 to 1000, found '1001'"},
    {"metadata_title = 'A fox'", "metadata_title", "honoured: metadata_title = \"A fox\""},
    {"metadata_trigger_phrase = 'f0x'", "metadata_trigger_phrase", "honoured: metadata_trigger_phrase = \"f0x\""},
    {"metadata_thumbnail = 'a.png'", "metadata_thumbnail", "idle: Wick's files have no such field"},
    {"training_comment = 'second try'", "training_comment", "honoured: training_comment = \"second try\""},
    {"no_metadata = true", "no_metadata", "honoured: no_metadata = true"},
    {"network_module = 'networks.lora'", "network_module", "honoured: adapter = \"lora\""},
    {"network_module = 'networks.loha'", "network_module", "honoured: adapter = \"loha\""},
    {"network_module = 'networks.lokr'\nnetwork_args = ['factor=8']", "network_args", "honoured: lokr_factor = 8"},
    {"network_module = 'lycoris.kohya'\nnetwork_args = ['algo=lokr', 'preset=attn-mlp']", "network_module",
     "honoured: adapter = \"lokr\""},
    {"network_module = 'lycoris.kohya'\nnetwork_args = ['algo=locon', 'dora_wd=True']", "network_module",
     "honoured: adapter = \"dora\""},
    {"network_module = 'lycoris.kohya'\nnetwork_args = ['conv_dim=8', 'conv_alpha=1']", "network_args",
     "honoured: conv_rank = 8, conv_alpha = 1.0"},
    {"network_module = 'lycoris.kohya'\nnetwork_args = ['algo=boft']", "network_args",
     "refused: algo=boft: Wick trains no BOFT; expected lora, locon, loha or lokr"},
    {"network_args = ['train_blocks=single', 'block_dims=1']", "network_args",
     "refused: block_dims: expected 23 numbers, found 1"},
    {"optimizer_type = 'AdamWScheduleFree'", "optimizer_type", "honoured: optimizer = \"schedule-free\""},
    {"optimizer_type = 'AdamWScheduleFree'\nlr_scheduler = 'cosine'", "lr_scheduler",
     "idle: a schedule-free optimizer has no schedule"},
    {"optimizer_type = 'PagedLion8bit'", "optimizer_type", "honoured: optimizer = \"lion8bit\""},
    {"optimizer_type = 'PagedAdamW'", "optimizer_type", "honoured: optimizer = \"adamw\""},
    {"optimizer_type = 'RAdamScheduleFree'\nlr_warmup_steps = 9", "lr_warmup_steps",
     "idle: a schedule-free optimizer has no schedule"},
    {"optimizer_type = 'RAdamScheduleFree'\noptimizer_args = ['r=1', 'silent_sgd_phase=True']", "optimizer_args",
     "honoured: schedule_free_r = 1.0"},
    {"optimizer_type = 'bitsandbytes.optim.AdamW8bit'", "optimizer_type", "honoured: optimizer = \"adamw8bit\""},
    {"optimizer_type = 'prodigyopt.Prodigy'", "optimizer_type", "honoured: optimizer = \"prodigy\""},
    {"optimizer_type = 'Lion'\noptimizer_args = ['betas=(0.9, 0.99)']", "optimizer_args",
     "honoured: betas = [0.9, 0.99]"},
    {"optimizer_type = 'Prodigy'\noptimizer_args = ['weight_decay=0.5', 'safeguard_warmup=True', 'd_coef=2', "
     "'d0=1e-5', "
     "'betas=0.9,0.99', 'beta3=None']",
     "optimizer_args",
     "honoured: weight_decay = 0.5, prodigy_safeguard_warmup = true, prodigy_d_coef = 2.0, prodigy_d0 = 1e-05, "
     "betas = [0.9, 0.99]"},
    {"optimizer_type = 'Prodigy'\noptimizer_args = ['use_bias_correction=True']", "optimizer_args",
     "honoured: prodigy_use_bias_correction = true"},
    {"optimizer_type = 'AdaFactor'", "learning_rate", ""},
    {"optimizer_type = 'AdaFactor'\nlearning_rate = 1e-4", "learning_rate",
     "idle: Adafactor with relative_step has rates of its own"},
    {"optimizer_type = 'AdaFactor'\nlr_scheduler = 'cosine'", "lr_scheduler",
     "idle: Adafactor with relative_step has rates of its own"},
    {"optimizer_type = 'AdaFactor'\noptimizer_args = ['warmup_init=True']", "optimizer_args",
     "honoured: adafactor_warmup_init = true"},
    {"optimizer_type = 'AdaFactor'\noptimizer_args = ['relative_step=False', 'clip_threshold=2']", "optimizer_args",
     "honoured: adafactor_relative_step = false, adafactor_clip_threshold = 2.0"},
    {"caption_extention = '.cap'", "caption_extention", "honoured: caption_extension = \".cap\""},
    {"vae = ''", "vae", "empty: says nothing"}};

TEST_F(KohyaTest, EachKeyIsToldOf) {
  for (const KohyaRow& row : kKohyaRows) {
    SCOPED_TRACE(row.option);
    write_plain(file_, kLeast + row.option + "\n");
    EXPECT_EQ(told(explain_kohya(file_), row.key), row.told);
  }
}

// Where the file says nothing, the constructor's own numbers count, and not Wick's.
TEST_F(KohyaTest, OptimizersHaveTheirConstructorsDefaults) {
  const TrainConfig prodigy = config("optimizer_type = 'Prodigy'\nlearning_rate = 1\nnetwork_train_unet_only = true");
  EXPECT_EQ(prodigy.betas, (std::vector<double>{0.9, 0.999}));
  EXPECT_FALSE(prodigy.prodigy_use_bias_correction || prodigy.prodigy_safeguard_warmup);
  EXPECT_TRUE(prodigy.prodigy_decouple);
  EXPECT_EQ(prodigy.weight_decay, 0);
  const TrainConfig third = config("optimizer_type = 'Prodigy'\noptimizer_args = ['beta3=0.9', 'betas=0.8,0.99']");
  EXPECT_EQ(third.betas, (std::vector<double>{0.8, 0.99, 0.9}));
  const TrainConfig adafactor = config("optimizer_type = 'Adafactor'\nlr_warmup_steps = 10\nlr_scheduler = 'linear'");
  EXPECT_TRUE(adafactor.adafactor_relative_step && adafactor.adafactor_scale_parameter);
  EXPECT_EQ(adafactor.lr.value, 0) << "which resolve() fills in";
  EXPECT_EQ(adafactor.lr_schedule, LrSchedule::constant);
  EXPECT_EQ(adafactor.warmup.value, 0);
  const TrainConfig scaled = config("optimizer_type = 'Adafactor'\noptimizer_args = ['relative_step=False']");
  EXPECT_TRUE(scaled.adafactor_scale_parameter && !scaled.adafactor_relative_step);
  EXPECT_EQ(scaled.lr.value, 2e-6);
  for (const auto& [name, decay] : {std::pair("AdamW", 0.01),
                                    {"PagedAdamW8bit", 0.01},
                                    {"Lion", 0.0},
                                    {"torch.optim.Adam", 0.0},
                                    {"RAdamScheduleFree", 0.0},
                                    {"bitsandbytes.optim.AdamW", 0.01}})
    EXPECT_EQ(config(fmt::format("optimizer_type = '{}'", name)).weight_decay, decay) << name;
  EXPECT_EQ(config("optimizer_type = 'AdamWScheduleFree'\nlr_warmup_steps = 9").warmup.value, 0);
  EXPECT_EQ(config("optimizer_type = 'AdamWScheduleFree'\noptimizer_args = ['warmup_steps=7']").warmup.value, 7);
}

// What the GUI saves, and what it hands to the scripts for it.
TEST_F(KohyaTest, TheGuisOwnFilesAreRead) {
  const fs::path gui = folder_ / "gui.json";
  write_plain(gui, R"({"LoRA_type": "LyCORIS/LoHa", "LyCORIS_preset": "full", "conv_dim": 4, "conv_alpha": 1,
    "network_dim": 8, "network_alpha": 2, "train_norm": false, "dora_wd": "", "max_resolution": "1024,1024",
    "optimizer": "AdamW8bit", "optimizer_args": "weight_decay=0.1 betas=0.9,0.999", "learning_rate": 0.0001,
    "unet_lr": 0.0002, "text_encoder_lr": 0, "epoch": 5, "max_train_steps": 0, "max_train_epochs": 0,
    "lr_scheduler": "cosine", "lr_warmup": 10, "lr_warmup_steps": 0, "train_data_dir": "pictures",
    "enable_bucket": true, "noise_offset_type": "Multires", "noise_offset": 0.1, "multires_noise_iterations": 6,
    "multires_noise_discount": 0.2, "max_token_length": 75, "min_snr_gamma": 0, "num_processes": 1,
    "additional_parameters": ""})");
  ASSERT_EQ(trainer_of(gui), Trainer::kohya);
  const ForeignConfig read = read_kohya_config(gui);
  const TrainConfig& c = read.config;
  EXPECT_EQ(c.adapter, AdapterKind::loha);
  EXPECT_EQ(c.rank.value, 8);
  EXPECT_EQ(c.alpha.value, 2);
  EXPECT_EQ(c.conv_rank, 4);
  EXPECT_EQ(c.resolution, std::vector<Resolution>{1024});
  EXPECT_EQ(c.optimizer, OptimizerKind::adamw8bit);
  EXPECT_EQ(c.weight_decay, 0.1);
  EXPECT_EQ(c.lr.value, 2e-4);
  EXPECT_EQ(c.epochs, 5) << "the GUI counts the steps of its epochs";
  EXPECT_EQ(c.steps, 0);
  EXPECT_EQ(c.warmup.value, 0.1);
  EXPECT_EQ(c.noise_offset, 0) << "of the other type of noise";
  EXPECT_EQ(c.multires_noise_iterations, 6);
  EXPECT_EQ(c.min_snr_gamma, 0);
  EXPECT_EQ(told(read, "num_processes"), "idle: of kohya's GUI; the scripts get it by another name, or not at all");
  EXPECT_EQ(told(read, "network_train_unet_only"), "honoured: targets = []");
}

TEST_F(KohyaTest, SidesMayDiffer) {
  for (const char* size : {"'1344,1792'", "'1344, 1792'", "[1344, 1792]"})
    EXPECT_EQ(read(fmt::format("train_data_dir = 'a'\nenable_bucket = true\nresolution = {}", size)).config.resolution,
              (std::vector<Resolution>{{1344, 1792}}));
  const TrainConfig one = read("train_data_dir = 'a'\nresolution = '1344,1792'").config;
  EXPECT_TRUE(one.no_bucket);
  expect_error([&] { read("train_data_dir = 'a'\nresolution = '1344,'"); }, {"resolution", "WIDTHxHEIGHT", "1344,"});
}

TEST_F(KohyaTest, CaptionsAreTreatedAsThere) {
  const TrainConfig plain = config("");
  EXPECT_TRUE(plain.caption_first_line) << "of a file";
  const TrainConfig c = config(
      "enable_wildcard = true\nkeep_tokens_separator = '|||'\nsecondary_separator = ';;;'\nshuffle_caption = true");
  EXPECT_TRUE(c.enable_wildcard && c.shuffle_caption && !c.caption_first_line);
  EXPECT_EQ(c.keep_tokens_separator, "|||");
  EXPECT_EQ(c.secondary_separator, ";;;");
}

TEST_F(KohyaTest, ValidationIsAfterEachEpoch) {
  const TrainConfig c = config("validation_split = 0.1\nvalidation_seed = 7\nmax_validation_steps = 5");
  EXPECT_EQ(c.validation_split, 0.1);
  EXPECT_EQ(c.validation_seed, 7);
  EXPECT_EQ(c.max_validation_steps, 5);
  EXPECT_EQ(c.val_every_epochs, 1);
  const TrainConfig rare = config("validation_split = 0.1\nvalidate_every_n_epochs = 3\nvalidate_every_n_steps = 50");
  EXPECT_EQ(rare.val_every_epochs, 3);
  EXPECT_EQ(rare.val_every, 50);
  EXPECT_EQ(config("validate_every_n_steps = 50").val_every, 0) << "nothing is held back";
}

// What asks for nothing is not refused, and "" is as if it were not there.
TEST_F(KohyaTest, NeutralValuesPass) {
  const TrainConfig c = config(
      "zero_terminal_snr = false\ntoken_warmup_min = 1\ncaption_dropout_every_n_epochs = 0\nmin_timestep = 0\n"
      "max_timestep = 1000\nresume = ''\nlr_scheduler_type = ''\nmax_token_length = 75\nvae = ''\nnoise_offset = 0.0\n"
      "max_train_epochs = 0\nnetwork_alpha = 0\nlr_warmup_steps = 100");
  EXPECT_EQ(c.alpha.value, 4) << "0 is the rank";
  EXPECT_EQ(c.warmup.value, 0) << "kohya's constant has none";
  EXPECT_EQ(c.steps, 1600);
}

TEST(Presets, AreConventionsAlone) {
  for (const Preset& preset : presets()) {
    TrainConfig c;
    const std::string name(preset.name);
    apply_preset(c, name);
    EXPECT_EQ(c.preset, name);
    EXPECT_GT(c.rank.value, 0) << name;
    EXPECT_GT(c.alpha.value, 0) << name;
    EXPECT_GT(c.lr.value, 0) << name;
    const TrainConfig untouched;
    for (const char* key :
         {"resolution", "device", "steps", "epochs", "batch_size", "dtype", "memory", "model", "output"})
      EXPECT_EQ(toml_of(c, key), toml_of(untouched, key)) << name << " sets " << key;
  }
  TrainConfig c;
  expect_error([&] { apply_preset(c, "kohya-flx"); }, {"--preset", "kohya-flx", "did you mean kohya-flux?"});
}

TEST(Presets, NumbersAreTheTools) {
  const auto with = [](const char* name, const char* key) {
    TrainConfig c;
    apply_preset(c, name);
    return toml_of(c, key);
  };
  EXPECT_EQ(with("kohya-sdxl", "alpha"), "16.0");
  EXPECT_EQ(with("kohya-flux", "alpha"), "1.0");
  EXPECT_EQ(with("ai-toolkit-flux", "ema"), "0.99");
  EXPECT_EQ(with("ai-toolkit-flux", "timestep_mean"), "\"0\"");
  EXPECT_EQ(with("onetrainer-sd3", "lr"), "0.0003");
  EXPECT_EQ(with("onetrainer-sdxl", "noise_offset"), "0.05");
}

// A file's own settings win over its preset, and flags' preset stands in for the file's.
TEST(Presets, ComeBeforeAllElse) {
  const TemporaryDirectory folder;
  write_plain(folder / "c.toml", "rank = 7\npreset = \"kohya-flux\"\n");
  TrainConfig c;
  read_toml(c, folder / "c.toml");
  EXPECT_EQ(c.rank.value, 7);
  EXPECT_EQ(c.alpha.value, 1);
  TrainConfig again;
  write_plain(folder / "again.toml", to_toml(c));
  read_toml(again, folder / "again.toml");
  EXPECT_EQ(to_toml(again), to_toml(c));
}

// The GUI writes a file of prompts beside each run, often an empty one, and the scripts draw nothing unless told when.
TEST_F(KohyaTest, PromptsAreDrawnWhenTheScriptsWouldDrawThem) {
  const fs::path prompts = folder_ / "prompt.txt";
  write_plain(prompts, "");
  const std::string file = fmt::format("sample_prompts = '{}'\n", prompts.string()),
                    often = "sample_every_n_steps = 5\n";
  EXPECT_TRUE(config(file).sample_prompts.empty());
  EXPECT_TRUE(config(file + often).sample_prompts.empty());
  EXPECT_EQ(config(file + often).sample_every, 0);
  write_plain(prompts, "a fox\n");
  EXPECT_TRUE(config(file).sample_prompts.empty()) << "never";
  EXPECT_EQ(config(file + often).sample_prompts, prompts.string());
  EXPECT_EQ(config(file + often).sample_every, 5);
}

// docs/sdxl_train_network.md of sd-scripts has them; no parser of its has.
TEST_F(KohyaTest, RatesThatTheScriptsLeaveAloneAreLeftAlone) {
  const ForeignConfig read = this->read(kLeast + "learning_rate = 1e-4\ntext_encoder_lr1 = 1e-5\n");
  EXPECT_EQ(toml_of(read.config, "lr"), "0.0001");
  EXPECT_EQ(told(read, "text_encoder_lr1"), "idle: kohya's scripts leave it alone; text_encoder_lr is a list");
}

}  // namespace
}  // namespace wick
