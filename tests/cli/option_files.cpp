// Other trainers' option files at the command line.
#include "cli/program.h"
#include "wick/io/file.h"

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
                                 "v_pred_like_loss = 1\nzero_terminal_snr = true\nnoise_ofset = 0.1\n");
  const Outcome run = run_wick("train --explain-config '" + file + "'");
  EXPECT_EQ(run.code, 0) << run.err;
  expect_parts(run.out, {"k.toml: options of kohya's scripts", "network_dim = 8\n      honoured: rank = 8",
                         "xformers = true\n      without meaning here: attention is always fused",
                         "v_pred_like_loss = 1\n      refused: ", "zero_terminal_snr = true\n      refused: ",
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

// As sd-scripts' README has it, behind `wick train`; Wick's own flags may stand with it, and win.
TEST_F(OptionFiles, FlagsOfKohyasScriptsAreFlags) {
  const std::string data = (test::source_dir() / "data/tiny-style").string(), out = (folder_ / "out").string();
  const std::string command = fmt::format(
      "train --pretrained_model_name_or_path=tiny --train_data_dir='{}' --output_dir='{}' --output_name=mine "
      "--resolution=64,64 --caption_extension .txt --save_model_as=safetensors --network_module=networks.lora "
      "--network_dim=4 --network_alpha 2 --learning_rate=1e-4 --optimizer_type=AdamW8bit --max_train_epochs=10 "
      "--mixed_precision=no --network_args conv_dim=2 conv_alpha=1 --network_train_unet_only --cache_latents "
      "--device cpu --steps 1",
      data, out);
  const Outcome run = run_wick(command);
  EXPECT_EQ(run.code, 0) << run.err;
  expect_parts(run.out, {"command line: taken: ", "network_dim", "cache_latents (always so)"});
  const std::string settings = read_file(folder_ / "out/config.toml", 1 << 20);
  for (const char* setting :
       {"rank = 4\n", "alpha = 2.0\n", "conv_rank = 2\n", "optimizer = \"adamw8bit\"\n", "steps = 1\n"})
    expect_parts(settings, {setting});
  EXPECT_TRUE(fs::exists(folder_ / "out/mine.safetensors"));
  // A slip of one of Wick's own flags is no word of kohya's.
  expect_one_line(run_wick("train --model tiny --dataset '" + data + "' --output '" + out + "' --epoch 3"),
                  {"--epoch", "no such flag", "--epochs"});
  for (const auto& [extra, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {" --netwerk_dim=8", {"--netwerk_dim", "no such flag", "--network-dim"}},
           {" --config x.toml", {"--pretrained_model_name_or_path", "no --config"}},
           {" --zero_terminal_snr", {"command line: zero_terminal_snr"}}})
    expect_one_line(run_wick(command + extra), words);
}

// A script of a shell as fluxgym and kohya's GUI write it.
TEST_F(OptionFiles, ScriptsOfAShellAreConfigs) {
  const std::string tail =
      " --pretrained_model_name_or_path 'my model' {0}\n  --network_args \"train_blocks=all\" {0}\n"
      "  --resolution 512 --train_data_dir d --gradient_checkpointing\necho done\n";
  for (const auto& [name, begin, line_break] :
       {std::tuple("t.sh",
                   "#!/bin/sh\nset -e # stop\nsource venv/bin/activate; accelerate launch \\\n "
                   "sd-scripts/flux_train_network.py",
                   "\\"),
        {"t.bat", "@echo off\r\ncd %HERE%\r\naccelerate launch ^\r\n sd-scripts\\flux_train_network.py", "^"},
        {"t.ps1", "accelerate launch `\n flux_train_network.py", "`"}}) {
    const std::string file = write(name, begin + fmt::format(fmt::runtime(tail), line_break));
    const Outcome run = run_wick("train --explain-config '" + file + "'");
    EXPECT_EQ(run.code, 0) << run.err;
    expect_parts(run.out, {"options of kohya's scripts", "pretrained_model_name_or_path = my model",
                           "script = flux_train_network.py", "gradient_checkpointing = true\n      honoured"});
    EXPECT_EQ(run.out.find("echo"), run.out.npos);
  }
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"echo hello\n", {"t.sh", "sdxl_train_network.py"}},
           {"python sdxl_train_network.py --seed \"1\n", {"t.sh: line 2", "quote"}},
           {"python sdxl_train_network.py --output_dir=$HOME/x\n", {"t.sh: line 1", "variable"}},
           {"python sdxl_train_network.py seed 1\n", {"t.sh", "seed"}},
           {"python sdxl_train_network.py --resolution=64 --train_data_dir=d --sed=1\n", {"t.sh: sed", "seed"}},
           {"python train_network.py --resolution=64 --train_data_dir=d\n", {"t.sh: script", "flux_train_network.py"}}})
    expect_one_line(run_wick("train --config '" + write("t.sh", text) + "'"), words);
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

std::string times(size_t count, std::string_view text) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

// A file that no program writes, and words of the one line.
struct HostileFile {
  const char* name;
  std::string text;
  std::vector<std::string> words;
};

const std::vector<HostileFile>& hostile_files() {
  static const std::string deep = times(300'000, "["), rubbish("\x00\xff\x80\x1f", 4),
                           json = R"({"training_method": "LORA", "model_type": )", yaml = "job: extension\nconfig: ";
  static const std::vector<HostileFile> all = {
      {"cut.toml", "train_data_dir = 'd", {"line 1"}},
      {"deep.toml", "a = " + deep, {"line 1", "256"}},
      {"parts.toml", "x = 'a.b.c.d.e.f.g.h.i.j'\na" + times(300'000, ".a") + " = 1", {"line 2", "at most 8 parts"}},
      {"header.toml", "[a" + times(150'000, " . \"a\"") + "]", {"line 1", "at most 8 parts"}},
      {"twice.toml", "network_dim = 8\nnetwork_dim = 4\n", {"line 2", "network_dim"}},
      {"rubbish.toml", rubbish, {"line 1"}},
      {"long.toml", times(1 << 19, "# x"), {"1048576 bytes"}},
      {"empty.json", "", {"not valid JSON"}},
      {"cut.json", json, {"not valid JSON"}},
      {"deep.json", json + deep, {"nested more than 100 deep"}},
      {"large.json", json + "1e400}", {"not valid JSON", "1e400"}},
      {"nan.json", json + "NaN}", {"not valid JSON"}},
      {"twice.json", json + "1, \"model_type\": 2}", {"\"model_type\" stands twice"}},
      {"list.json", "[]", {"expected an object of options"}},
      {"rubbish.json", rubbish, {"not valid JSON"}},
      {"empty.yaml", "", {"found nothing"}},
      {"cut.yaml", yaml + "{name: x, process: [", {"line 3"}},
      {"deep.yaml", yaml + deep, {"at most 100 levels"}},
      {"laughs.yaml", "a: &a [x, x]\nb: &b [*a, *a]\n" + yaml + "[*b, *b]\n", {"line 2", "no aliases"}},
      {"tag.yaml", "job: !!python/object/apply:os.system [x]\nconfig: 1\n", {"line 1", "no tags"}},
      {"twice.yaml", yaml + "1\njob: train\n", {"line 3", "job: expected it once"}},
      {"two.yaml", yaml + "1\n---\na: 1\n", {"expected one document"}},
      {"type.yaml", yaml + ".nan\n", {"config.process: expected a list of one process"}},
      {"rubbish.yaml", rubbish, {"line 1"}}};
  return all;
}

TEST_F(OptionFiles, HostileFilesEndInOneLine) {
  for (const HostileFile& file : hostile_files())
    for (const char* flag : {"--config", "--explain-config"}) {
      const Outcome run = run_wick(fmt::format("train {} '{}'", flag, write(file.name, file.text)));
      EXPECT_TRUE(run.code == 1 || run.code == 2) << file.name << ": " << run.code;
      EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << file.name << ": " << run.err;
      expect_parts(run.err, {file.name});
      for (const std::string& word : file.words) expect_parts(run.err, {word});
    }
}

}  // namespace
}  // namespace wick
