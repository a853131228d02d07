#include "wick/train/foreign/musubi.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "wick/core/error.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class MusubiTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    write_plain(folder_ / name, text);
    return (folder_ / name).string();
  }
  // As docs/flux_kontext.md and docs/dataset_config.md of musubi-tuner have them.
  std::string options(const std::string& more = "", const std::string& data = kData) const {
    return write("m.toml",
                 "dit = \"flux.safetensors\"\nvae = \"ae.safetensors\"\ntext_encoder1 = \"t5.safetensors\"\n"
                 "text_encoder2 = \"clip_l.safetensors\"\noutput_dir = \"out\"\noutput_name = \"name\"\n"
                 "network_module = \"networks.lora_flux\"\ndataset_config = \"" +
                     write("d.toml", data) + "\"\n" + more);
  }
  ForeignConfig explain(const std::string& more = "", const std::string& data = kData) const {
    return explain_musubi(options(more, data));
  }
  TrainConfig read(const std::string& more = "", const std::string& data = kData) const {
    const ForeignConfig read = explain(more, data);
    read.check();
    return read.config;
  }

  static constexpr const char* kData =
      "[general]\nresolution = [960, 544]\ncaption_extension = \".txt\"\nbatch_size = 2\nenable_bucket = true\n"
      "[[datasets]]\nimage_directory = \"pictures\"\n";
  TemporaryDirectory folder_;
};

TEST_F(MusubiTest, DefaultsAreThoseOfItsParser) {
  const TrainConfig c = read();
  EXPECT_EQ(c.model, "flux.safetensors");
  EXPECT_EQ(c.vae, "ae.safetensors");
  EXPECT_EQ(c.t5, "t5.safetensors");
  EXPECT_EQ(c.clip_l, "clip_l.safetensors");
  EXPECT_EQ(c.dataset, std::vector<std::string>{"pictures"});
  EXPECT_EQ(c.caption_extension, ".txt");
  EXPECT_EQ(c.batch_size, 2);
  EXPECT_EQ(c.bucket_step, 16);
  EXPECT_EQ(c.resolution, std::vector<Resolution>{Resolution(960, 544)});
  EXPECT_EQ(c.rank.value, 4);
  EXPECT_EQ(c.alpha.value, 1);
  EXPECT_EQ(c.steps, 1600);
  EXPECT_DOUBLE_EQ(c.lr.value, 2e-6);
  EXPECT_EQ(c.optimizer, OptimizerKind::adamw);
  EXPECT_DOUBLE_EQ(c.weight_decay, 0.01);
  EXPECT_EQ(c.timesteps, TimestepKind::uniform) << "sigma";
  EXPECT_EQ(c.timestep_shift, "1");
  EXPECT_EQ(c.train_guidance, 1);
  EXPECT_EQ(c.dtype, DType::f32);
  EXPECT_EQ(c.targets, (std::vector<std::string>{"transformer.double_blocks.*", "transformer.single_blocks.*",
                                                 "-transformer.double_blocks.*_mod.*",
                                                 "-transformer.single_blocks.*.modulation.*"}));
}

TEST_F(MusubiTest, OptionsAreHonoured) {
  const TrainConfig c = read(
      "network_dim = 32\nnetwork_alpha = 16\nmixed_precision = \"bf16\"\ntimestep_sampling = \"flux_shift\"\n"
      "weighting_scheme = \"none\"\noptimizer_type = \"adamw8bit\"\nlearning_rate = 1e-4\ngradient_checkpointing = "
      "true\n"
      "max_data_loader_n_workers = 2\npersistent_data_loader_workers = true\nmax_train_epochs = 16\n"
      "save_every_n_epochs = 1\nseed = 42\nsdpa = true\nfp8_base = true\nfp8_scaled = true\nblocks_to_swap = 20\n"
      "gradient_checkpointing_cpu_offload = true\nmin_timestep = 100\nmax_timestep = 900\n"
      "network_args = [\"loraplus_lr_ratio=4\"]\noptimizer_args = [\"betas=0.9,0.95\"]\n");
  EXPECT_EQ(c.rank.value, 32);
  EXPECT_EQ(c.alpha.value, 16);
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_EQ(c.optimizer, OptimizerKind::adamw8bit);
  EXPECT_EQ(c.timestep_shift, "auto");
  EXPECT_EQ(c.epochs, 16);
  EXPECT_EQ(c.steps, 0);
  EXPECT_EQ(c.save_every_epochs, 1);
  EXPECT_EQ(c.seed, 42);
  EXPECT_EQ(c.quantize, Quantize::fp8);
  EXPECT_EQ(c.stream_blocks, "20");
  EXPECT_TRUE(c.gradient_checkpointing && c.checkpoints_on_host);
  EXPECT_EQ(c.min_timestep, 100);
  EXPECT_EQ(c.max_timestep, 900);
  EXPECT_EQ(c.timestep_range, TimestepRange::shifted);
  EXPECT_EQ(c.lora_plus.value, 4);
  EXPECT_EQ(c.betas, (std::vector<double>{0.9, 0.95}));
}

TEST_F(MusubiTest, SeveralDataSetsBecomeTables) {
  const TrainConfig c = read("", std::string(kData) +
                                     "num_repeats = 3\nresolution = [512, 512]\n[[datasets]]\n"
                                     "image_directory = \"more\"\nenable_bucket = false\n");
  EXPECT_TRUE(c.dataset.empty());
  for (const char* part : {"pictures", "more", "num_repeats = 3", "512"})
    EXPECT_NE(c.datasets.find(part), std::string::npos) << c.datasets;
}

TEST_F(MusubiTest, OthersAreRefused) {
  const auto refused = [&](const std::string& more, const std::string& data,
                           std::initializer_list<std::string_view> words) {
    expect_error([&] { read(more, data); }, words);
  };
  refused("num_timestep_buckets = 4\n", kData, {"m.toml: num_timestep_buckets"});
  refused("min_timestep = 100\n", kData, {"min_timestep", "sigma"});
  refused("resume = \"state\"\n", kData, {"resume", "--resume"});
  refused("", std::string(kData) + "control_directory = \"c\"\n",
          {"datasets[0].control_directory", "reference pictures"});
  refused("", "[general]\n", {"dataset_config", "[[datasets]]"});
  refused("", "[[datasets]]\nvideo_directory = \"v\"\n", {"datasets[0].video_directory", "videos"});
  for (const auto& [data, words] :
       {std::pair{folder_.path().string(), "found a directory"}, std::pair{std::string("/dev/zero"), "found a device"},
        std::pair{write("r.toml", "[[datasets"), "line 1"},
        std::pair{write("n.toml", "datasets = 4"), "expected [[datasets]]"}}) {
    const std::string hostile =
        write("h.toml", "dit = 'x'\nnetwork_module = 'networks.lora_flux'\ndataset_config = '" + data + "'\n");
    expect_error([&] { explain_musubi(hostile).check(); }, {words});
  }
  const std::string other = write("q.toml", "dit = \"q\"\nnetwork_module = \"networks.lora_qwen_image\"\n");
  expect_error([&] { explain_musubi(other).check(); }, {"q.toml: network_module", "FLUX.1", "lora_qwen_image"});
  EXPECT_EQ(trainer_of(other), Trainer::musubi);
  const std::string script = write("t.sh",
                                   "accelerate launch src/musubi_tuner/zimage_train_network.py --dit z --text_encoder "
                                   "t --network_module networks.lora_zimage\n");
  EXPECT_EQ(trainer_of(script), Trainer::musubi);
  expect_error([&] { explain_musubi(script).check(); }, {"t.sh: script", "FLUX.1", "zimage_train_network.py"});
}

}  // namespace
}  // namespace wick
