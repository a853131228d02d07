// Other trainers' option files at the command line.
#include "cli/program.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class OptionFiles : public testing::Test {
 protected:
  std::string write(const char* name, const std::string& text) const {
    write_plain(folder_ / name, text);
    return (folder_ / name).string();
  }
  static void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) EXPECT_NE(text.find(part), text.npos) << text << "\nlacks " << part;
  }

  TemporaryDirectory folder_;
};

TEST_F(OptionFiles, EachKeyIsExplainedAtOnce) {
  const std::string file = write("k.toml",
                                 "train_data_dir = 'd'\nresolution = 512\nnetwork_dim = 8\nxformers = true\n"
                                 "max_token_length = 225\nzero_terminal_snr = true\nnoise_ofset = 0.1\n");
  const Outcome run = run_wick("train --explain-config '" + file + "'");
  EXPECT_EQ(run.code, 0) << run.err;
  expect_parts(run.out, {"k.toml: options of kohya's scripts", "network_dim = 8\n      honoured: rank = 8",
                         "xformers = true\n      without meaning here: attention is always fused",
                         "max_token_length = 225\n      refused: ", "zero_terminal_snr = true\n      refused: ",
                         "did you mean noise_offset?", "3 honoured, 2 without meaning here, 2 refused"});
}

TEST_F(OptionFiles, AnotherTrainersFileIsAConfig) {
  const std::string data = (test::source_dir() / "data/tiny-style").string();
  const std::string file =
      write("k.toml", fmt::format("pretrained_model_name_or_path = 'tiny'\ntrain_data_dir = '{}'\nresolution = 64\n"
                                  "caption_extension = '.txt'\nnetwork_train_unet_only = true\noutput_dir = '{}'\n"
                                  "max_train_steps = 1\nnetwork_module = 'networks.lora'\n",
                                  data, (folder_ / "out").string()));
  const Outcome run = run_wick("train --device cpu --config '" + file + "'");
  EXPECT_EQ(run.code, 0) << run.err;
  expect_parts(run.out, {"k.toml: taken: "});
  EXPECT_TRUE(fs::exists(folder_ / "out/lora.safetensors"));
}

TEST_F(OptionFiles, WicksOwnFileHasNothingToExplain) {
  const Outcome run = run_wick("train --explain-config '" + write("w.toml", "rank = 4\n") + "'");
  EXPECT_EQ(run.code, 2);
  expect_parts(run.err, {"w.toml", "Wick's own settings"});
}

TEST_F(OptionFiles, FilesThatAreNotReadAreNamed) {
  const Outcome run = run_wick("train --config '" + write("s.json", R"({"--model_family": "flux"})") + "'");
  EXPECT_EQ(run.code, 2);
  expect_parts(run.err, {"s.json", "SimpleTuner"});
}

}  // namespace
}  // namespace wick
