// A LoRA file's metadata about its run, as kohya's scripts spell it.
#include "wick/train/lora_metadata.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "wick/io/safetensors.h"
#include "wick/io/sha256.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

using Tensors = std::map<std::string, Tensor>;
using Metadata = std::map<std::string, std::string>;

Tensor zeros_of(const Shape& shape) { return zeros(shape, DType::f32); }

Tensors unet() {
  return {{"lora_unet_x_to_q.lora_down.weight", zeros_of({4, 8})},
          {"lora_unet_x_to_q.lora_up.weight", zeros_of({8, 4})}};
}
Tensors text() { return {{"lora_te1_x.lora_down.weight", zeros_of({4, 8})}}; }

class LoraMetadata : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    config_.steps = 10;
    config_.accumulate = 2;
    config_.lr = 1e-4;
    config_.rank = 4;
    config_.alpha = 2;
    dataset_.sources = {.path = "pictures", .groups = {{.resolutions = {BucketOptions{}}, .subsets = {{}}}}};
    dataset_.examples.push_back({.image = "pictures/a.png",
                                 .name = "a.png",
                                 .captions = {"a cat"},
                                 .size = {64, 64},
                                 .placement = {.bucket = {64, 64}, .scaled = {64, 64}}});
  }
  void TearDown() override { ::unsetenv("SOURCE_DATE_EPOCH"); }

  Metadata of(const Tensors& tensors, int64_t step = 10) const {
    return lora_metadata({.config = config_,
                          .dataset = dataset_,
                          .session = LoraSession::begin(config_),
                          .step = step,
                          .batches_per_epoch = 6,
                          .activations = activations_,
                          .family = {{"ss_base_model_version", "x"}, {"modelspec.architecture", "x/lora"}},
                          .flow = flow_},
                         tensors);
  }

  TrainConfig config_;
  Dataset dataset_;
  DType activations_ = DType::f32;
  std::optional<FlowRun> flow_;
};

// The keys of get_sai_model_spec() and train_network.py of kohya-ss/sd-scripts.
TEST_F(LoraMetadata, FieldsAreTheUsers) {
  config_.name = "fox";
  EXPECT_EQ(of(unet()).at("modelspec.title"), "fox");
  for (const char* key :
       {"modelspec.author", "modelspec.description", "modelspec.license", "modelspec.tags", "modelspec.trigger_phrase",
        "modelspec.usage_hint", "modelspec.timestep_range", "ss_training_comment", "ss_max_token_length"})
    EXPECT_FALSE(of(unet()).contains(key)) << key;
  config_.metadata_title = "A fox", config_.metadata_author = "A. Uthor", config_.metadata_description = "Foxes, red";
  config_.metadata_license = "CC0-1.0", config_.metadata_tags = "fox, snow", config_.metadata_usage_hint = "at 0.8";
  config_.metadata_trigger_phrase = "f0x", config_.training_comment = "second try";
  config_.max_token_length = 225, config_.min_timestep = 10;
  const Metadata m = of(unet());
  for (const auto& [key, text] : {std::pair("modelspec.title", "A fox"),
                                  {"modelspec.author", "A. Uthor"},
                                  {"modelspec.description", "Foxes, red"},
                                  {"modelspec.license", "CC0-1.0"},
                                  {"modelspec.tags", "fox, snow"},
                                  {"modelspec.trigger_phrase", "f0x"},
                                  {"modelspec.usage_hint", "at 0.8"},
                                  {"modelspec.timestep_range", "10,1000"},
                                  {"ss_training_comment", "second try"},
                                  {"ss_max_token_length", "225"}})
    EXPECT_EQ(m.at(key), text) << key;
}

// SS_METADATA_MINIMUM_KEYS, the hashes and modelspec.*.
TEST_F(LoraMetadata, NoMetadataLeavesTheNetworkAndTheModelspec) {
  config_.no_metadata = true;
  config_.metadata_title = "A fox";
  std::vector<std::string> of_run;
  for (const auto& [key, value] : of(unet()))
    if (key.starts_with("ss_")) of_run.push_back(key);
  EXPECT_EQ(of_run, (std::vector<std::string>{"ss_base_model_version", "ss_network_alpha", "ss_network_args",
                                              "ss_network_dim"}));
  EXPECT_EQ(of(unet()).at("modelspec.title"), "A fox");
  EXPECT_TRUE(of(unet()).contains("sshs_legacy_hash"));
}

TEST_F(LoraMetadata, TimesAreThoseOfTheEnvironment) {
  const Metadata m = of(unet());
  EXPECT_EQ(m.at("ss_training_started_at"), "1700000000.0");
  EXPECT_EQ(m.at("ss_training_finished_at"), "1700000000.0");
  EXPECT_EQ(m.at("modelspec.date"), "2023-11-14T22:13:20");
  EXPECT_EQ(m, of(unet()));
  ::setenv("SOURCE_DATE_EPOCH", "1700000001", 1);
  EXPECT_NE(of(unet()).at("ss_session_id"), m.at("ss_session_id"));
  for (const char* bad : {"x", "-1", "1.5", " 1", "99999999999999999999"}) {
    ::setenv("SOURCE_DATE_EPOCH", bad, 1);
    EXPECT_THROW(LoraSession::begin(config_), UsageError) << bad;
  }
}

TEST_F(LoraMetadata, WithoutItTheyAreNow) {
  ::unsetenv("SOURCE_DATE_EPOCH");
  const auto now = double(std::time(nullptr));
  const Metadata m = of(unet());
  EXPECT_NEAR(std::stod(m.at("ss_training_started_at")), now, 60);
  EXPECT_GE(std::stod(m.at("ss_training_finished_at")), std::stod(m.at("ss_training_started_at")));
  EXPECT_EQ(m.at("modelspec.date").size(), std::string("2023-11-14T22:13:20").size());
  EXPECT_NE(m.at("ss_session_id"), of(unet()).at("ss_session_id"));
}

// 10 steps of 2 batches in epochs of 6.
TEST_F(LoraMetadata, EpochsAreCounted) {
  EXPECT_EQ(of(unet()).at("ss_num_epochs"), "4");
  EXPECT_EQ(of(unet()).at("ss_epoch"), "4");
  EXPECT_EQ(of(unet(), 9).at("ss_epoch"), "3");
  EXPECT_EQ(of(unet(), 8).at("ss_epoch"), "2");
  EXPECT_EQ(of(unet(), 2).at("ss_epoch"), "0");
}

TEST_F(LoraMetadata, RatesAreOfWhatIsTrained) {
  const Metadata of_unet = of(unet()), of_text = of(text());
  EXPECT_EQ(of_unet.at("ss_unet_lr"), "0.0001");
  EXPECT_EQ(of_unet.at("ss_text_encoder_lr"), "None");
  EXPECT_EQ(of_unet.at("ss_clip_skip"), "None");
  EXPECT_FALSE(of_text.contains("ss_unet_lr"));
  EXPECT_EQ(of_text.at("ss_text_encoder_lr"), "0.0001");
  Tensors both = unet();
  both.merge(text());
  EXPECT_EQ(of(both).at("ss_unet_lr"), "0.0001");
  EXPECT_EQ(of(both).at("ss_text_encoder_lr"), "0.0001");
}

TEST_F(LoraMetadata, PrecisionIsThatOfTheArithmetic) {
  for (const auto& [dtype, name] : {std::pair{DType::f32, "no"}, {DType::bf16, "bf16"}, {DType::f16, "fp16"}}) {
    activations_ = dtype;
    EXPECT_EQ(of(unet()).at("ss_mixed_precision"), name);
  }
}

TEST_F(LoraMetadata, EachResolutionIsADataSet) {
  EXPECT_EQ(of(unet()).at("ss_resolution"), "(1024, 1024)");
  EXPECT_FALSE(of(unet()).contains("ss_datasets"));
  dataset_.sources.groups.front().resolutions = {{.resolution = 512}, {.resolution = 768}};
  Example small = dataset_.examples.front();
  dataset_.examples.front().resolution = 768;
  dataset_.examples.front().repeats = small.repeats = 3;
  small.resolution = 512;
  small.placement.bucket = {32, 48};
  dataset_.examples.insert(dataset_.examples.begin(), small);
  const Metadata m = of(unet());
  EXPECT_EQ(m.at("ss_num_train_images"), "6");
  EXPECT_EQ(m.at("modelspec.resolution"), "768x768");
  for (const char* key : {"ss_resolution", "ss_bucket_info", "ss_enable_bucket"}) EXPECT_FALSE(m.contains(key)) << key;
  const auto parsed = [&](const char* key) { return nlohmann::json::parse(m.at(key)); };
  const nlohmann::json pictures = {{"img_count", 1}, {"n_repeats", 3}};
  EXPECT_EQ(parsed("ss_dataset_dirs"), (nlohmann::json{{"pictures", pictures}, {"pictures (2)", pictures}}));
  EXPECT_EQ(parsed("ss_tag_frequency")["pictures"]["a cat"], 1);
  const nlohmann::json datasets = parsed("ss_datasets");
  ASSERT_EQ(datasets.size(), 2u);
  EXPECT_EQ(datasets[0]["resolution"].dump(), "[512,512]");
  EXPECT_EQ(datasets[0]["bucket_info"]["buckets"].dump(), R"({"0":{"count":3,"resolution":[32,48]}})");
  EXPECT_EQ(datasets[1]["bucket_info"]["buckets"].dump(), R"({"0":{"count":3,"resolution":[64,64]}})");
  EXPECT_EQ(datasets[1]["num_train_images"], 3);
  EXPECT_EQ(datasets[1]["subsets"][0]["image_dir"], "pictures");
}

TEST_F(LoraMetadata, FamilyAndScheduleAreNamed) {
  config_.lr_schedule = LrSchedule::cosine;
  EXPECT_EQ(of(unet()).at("ss_lr_scheduler"), "cosine");
  EXPECT_EQ(of(unet()).at("ss_base_model_version"), "x");
  EXPECT_EQ(of(unet()).at("modelspec.architecture"), "x/lora");
}

TEST_F(LoraMetadata, OptimizersAreNamedAsInKohyas) {
  const auto named = [&](OptimizerKind kind) {
    config_.optimizer = kind;
    return of(unet()).at("ss_optimizer");
  };
  EXPECT_EQ(named(OptimizerKind::adamw), "torch.optim.adamw.AdamW(weight_decay=0.01)");
  EXPECT_EQ(named(OptimizerKind::adamw8bit), "bitsandbytes.optim.adamw.AdamW8bit(weight_decay=0.01)");
  EXPECT_EQ(
      named(OptimizerKind::prodigy),
      "prodigyopt.prodigy.Prodigy(weight_decay=0.01,betas=(0.9, 0.99),use_bias_correction=True,safeguard_warmup=True)");
  EXPECT_EQ(named(OptimizerKind::adafactor),
            "transformers.optimization.Adafactor(weight_decay=0.01,relative_step=False,scale_parameter=False,"
            "warmup_init=False)");
  config_.betas = {0.8, 0.95}, config_.eps = {1e-6}, config_.schedule_free_r = 1;
  EXPECT_EQ(named(OptimizerKind::radam_schedule_free),
            "schedulefree.radam_schedulefree.RAdamScheduleFree(weight_decay=0.01,betas=(0.8, 0.95),eps=1e-06,r=1)");
}

TEST_F(LoraMetadata, FlowsTellHowTimesWereDrawn) {
  for (const char* key : {"ss_weighting_scheme", "ss_t5xxl_max_token_length", "ss_guidance_scale"})
    EXPECT_FALSE(of(unet()).contains(key)) << key;
  config_.t5_mask = true;
  config_.train_guidance = 3.5;
  flow_ = FlowRun{.times = {.shift = 3, .deviation = 0.75}, .t5_tokens = 256};
  const Metadata sd3 = of(unet());
  EXPECT_EQ(sd3.at("ss_weighting_scheme"), "logit_normal");
  EXPECT_NEAR(std::stod(sd3.at("ss_logit_mean")), std::log(3.0), 1e-12);
  EXPECT_EQ(sd3.at("ss_logit_std"), "0.75");
  EXPECT_EQ(sd3.at("ss_sigmoid_scale"), "0.75");
  EXPECT_EQ(sd3.at("ss_mode_scale"), "1.29");
  EXPECT_EQ(sd3.at("ss_timestep_sampling"), "shift");
  EXPECT_EQ(sd3.at("ss_discrete_flow_shift"), "3.0");
  EXPECT_EQ(sd3.at("ss_model_prediction_type"), "raw");
  EXPECT_EQ(sd3.at("ss_apply_t5_attn_mask"), "True");
  EXPECT_EQ(sd3.at("ss_t5xxl_max_token_length"), "256");
  EXPECT_FALSE(sd3.contains("ss_guidance_scale"));

  flow_ = FlowRun{.t5_tokens = 512, .is_guided = true};  // every picture's size has its shift
  EXPECT_EQ(of(unet()).at("ss_timestep_sampling"), "flux_shift");
  EXPECT_EQ(of(unet()).at("ss_discrete_flow_shift"), "None");
  EXPECT_EQ(of(unet()).at("ss_guidance_scale"), "3.5");
  flow_->times.mean = 0;  // in place of them
  EXPECT_EQ(of(unet()).at("ss_timestep_sampling"), "shift");
  EXPECT_EQ(of(unet()).at("ss_discrete_flow_shift"), "1.0");
  EXPECT_EQ(of(unet()).at("ss_logit_mean"), "0.0");
  for (const auto& [kind, scheme] : {std::pair{TimestepKind::uniform, "uniform"}, {TimestepKind::mode, "mode"}}) {
    flow_ = FlowRun{.times = {.kind = kind, .shift = 2}};
    EXPECT_EQ(of(unet()).at("ss_weighting_scheme"), scheme);
    EXPECT_EQ(of(unet()).at("ss_timestep_sampling"), "sigma");
    EXPECT_EQ(of(unet()).at("ss_discrete_flow_shift"), "2.0");
  }
}

TEST_F(LoraMetadata, ConvolutionsAreNetworkArguments) {
  EXPECT_EQ(of(unet()).at("ss_network_args"), "{}");
  Tensors convolution = unet();
  convolution["lora_unet_x_conv1.lora_down.weight"] = zeros_of({4, 8, 1, 1});
  EXPECT_EQ(of(convolution).at("ss_network_args"), "{}");
  convolution["lora_unet_x_conv1.lora_down.weight"] = zeros_of({4, 8, 3, 3});
  const auto args = nlohmann::json::parse(of(convolution).at("ss_network_args"));
  EXPECT_EQ(args.at("conv_dim"), "4");
  EXPECT_EQ(args.at("conv_alpha"), "2");
}

// sd-scripts, library/train_util.py: precalculate_safetensors_hashes, with addnet_hash_legacy and
// addnet_hash_safetensors.
TEST_F(LoraMetadata, HashesAreThoseOfKohya) {
  Rng rng(7);
  const Tensors large = {{"lora_unet_x_to_q.lora_down.weight", random_normal({600, 512}, rng)}};  // 1.2 MB
  for (const Tensors& tensors : {unet(), large}) {
    const Metadata m = of(tensors);
    Metadata training;
    for (const auto& [key, value] : m)
      if (key.starts_with("ss_")) training[key] = value;
    const TemporaryDirectory folder;
    save_safetensors(folder / "f", tensors, training);
    const std::string file = read_plain(folder / "f");
    const std::string part = file.size() < 0x100000 ? "" : file.substr(0x100000, 0x10000);
    EXPECT_EQ(m.at("sshs_legacy_hash"), sha256_hex(part).substr(0, 8));
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    EXPECT_EQ(m.at("sshs_model_hash"), sha256_hex(file.substr(8 + header)));
  }
  EXPECT_EQ(of(unet()).at("sshs_legacy_hash"), "e3b0c442");  // of no bytes
}

}  // namespace
}  // namespace wick
