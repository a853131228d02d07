// Previews: the file of prompts, the folder that they are kept in, and whole runs that draw and write them.
#include "wick/train/previews.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "device.h"
#include "source_dir.h"
#include "train/process.h"
#include "wick/train/preview_folder.h"
#include "wick/train/state.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden";

TEST(SamplePrompts, AreReadAsKohyasScriptsReadThem) {
  const std::vector<SamplePrompt> prompts = parse_sample_prompts(
      "\xef\xbb\xbf# a remark --w 1\n\n  a fox, 3 -- 4 --n dull, --- grey --w 64 --H 96 --d 18446744073709551615 \r\n"
      "--l 7.5 --g 3 --s 20 --ss k_euler_a",
      "p.txt");
  ASSERT_EQ(prompts.size(), 2u);
  const SamplePrompt& fox = prompts[0];
  EXPECT_EQ(fox.prompt, "a fox, 3 -- 4");
  EXPECT_EQ(fox.where, "p.txt: line 3");
  EXPECT_EQ(fox.negative, "dull, --- grey");
  EXPECT_EQ(fox.width, 64);
  EXPECT_EQ(fox.height, 96);
  EXPECT_EQ(fox.seed, 18446744073709551615u);
  EXPECT_EQ(fox.flags(), (std::vector<std::string>{"--n", "--w", "--h", "--d"}));
  EXPECT_EQ(prompt_of(fox.line), fox.prompt);
  EXPECT_EQ(prompts[1].prompt, "");
  EXPECT_EQ(prompts[1].cfg, 7.5);
  EXPECT_EQ(prompts[1].guidance, 3);
  EXPECT_EQ(prompts[1].steps, 20);
  EXPECT_EQ(prompts[1].sampler, "k_euler_a");
}

TEST(SamplePrompts, FaultsNameTheLineAndTheFlag) {
  const auto expect = [](const std::string& text, std::initializer_list<const char*> parts) {
    try {
      parse_sample_prompts(text, "p.txt");
      FAIL() << text;
    } catch (const UsageError& e) {
      for (const char* part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  expect("a\nb --x 3", {"p.txt: line 2", "--ss", "\"--x\""});
  expect("a --w", {"line 1: --w", "a value"});
  expect("a --w 3.5", {"--w", "integer", "\"3.5\""});
  expect("a --h 99999999999999999999", {"--h", "16384"});
  expect("a --l nan", {"--l", "number from 1 to 100"});
  expect("a --d -1", {"--d", "from 0"});
  expect("a --s 3 --s 4", {"--s", "twice"});
  expect("a\xff", {"UTF-8"});
  expect(std::string("a\0b", 3), {"UTF-8"});
  expect(" \n# none\n", {"p.txt", "a prompt a line"});
  std::string many;
  for (int i = 0; i < 257; ++i) many += "a\n";
  expect(many, {"256"});
}

// Flags of gen_img.py, of ControlNets and of other models, which sd-scripts' previews leave alone.
TEST(SamplePrompts, FlagsOfOtherProgramsAreIdle) {
  const SamplePrompt prompt = parse_sample_prompt("a fox --am 0.5,1 --cn a.png --s 4 --ct 8 --fs 3.1 --n b", "p.txt");
  EXPECT_EQ(prompt.idle, (std::vector<std::string>{"--am", "--cn", "--ct", "--fs"}));
  EXPECT_EQ(prompt.prompt, "a fox");
  EXPECT_EQ(prompt.steps, 4);
  EXPECT_EQ(prompt.negative, "b");
}

class ForeignSamples : public testing::Test {
 protected:
  std::vector<SamplePrompt> read(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return read_sample_prompts(folder_ / name);
  }
  void refused(const std::string& name, const std::string& text, std::initializer_list<const char*> parts) {
    try {
      read(name, text);
      FAIL() << text;
    } catch (const UsageError& e) {
      for (const char* part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  TemporaryDirectory folder_;
};

// As load_prompts() of sd-scripts reads them.
TEST_F(ForeignSamples, KohyasAreReadInTomlAndJson) {
  const std::vector<SamplePrompt> toml =
      read("p.toml",
           "[prompt]\nwidth = 64\nnegative_prompt = 'dull'\n[[prompt.subset]]\nprompt = 'a fox --w 3'\n"
           "scale = 4.5\n[[prompt.subset]]\nprompt = 'a cat'\nseed = 7\nsample_steps = 3\nflow_shift = 2\n");
  ASSERT_EQ(toml.size(), 2u);
  EXPECT_EQ(toml[0].prompt, "a fox --w 3") << "flags are for lines";
  EXPECT_EQ(toml[0].width, 64);
  EXPECT_EQ(toml[0].cfg, 4.5);
  EXPECT_FALSE(toml[0].seed);
  EXPECT_EQ(toml[1].width, 64);
  EXPECT_EQ(toml[1].negative, "dull");
  EXPECT_EQ(toml[1].seed, 7u);
  EXPECT_EQ(toml[1].steps, 3);
  EXPECT_EQ(toml[1].idle, std::vector<std::string>{"flow_shift"});
  const std::vector<SamplePrompt> json =
      read("p.json", R"(["a fox --h 96", {"prompt": "a cat", "guidance_scale": 3, "sample_sampler": "euler_a"}])");
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0].height, 96);
  EXPECT_EQ(json[1].guidance, 3);
  EXPECT_EQ(json[1].sampler, "euler_a");
  refused("q.toml", "[prompt]\nwidth = 64\n[[prompt.subset]]\nwidth = 32\n", {"q.toml: width", "once"});
  refused("q.toml", "width = 64\n", {"q.toml", "prompt.subset"});
  refused("q.json", R"([{"prompt": "x", "width": "wide"}])", {"q.json: prompt 1: width", "\"wide\""});
  refused("q.json", "[3]", {"q.json: prompt 1", "number"});
  refused("q.json", "[]", {"q.json", "found none"});
  refused("q.json", "3", {"q.json", "a list"});
}

// SampleConfig.py: samples may be disabled, and cfg_scale is FLUX's guidance.
TEST_F(ForeignSamples, OneTrainersAreRead) {
  const char* const kList = R"([{"enabled": false, "prompt": "x"}, {"prompt": "a fox", "negative_prompt": "", "seed": 3,
      "random_seed": true, "width": 64, "height": 64, "diffusion_steps": 5, "cfg_scale": 2.5, "frames": 1,
      "noise_scheduler": "EULER_A", "sample_inpainting": false}, {"prompt": "b", "noise_scheduler": "EULER_KARRAS",
      "text_encoder_1_layer_skip": 1, "seed": 4}])";
  for (const std::string& text : {std::string(kList), fmt::format("{{\"samples\": {}}}", kList)}) {
    const std::vector<SamplePrompt> prompts = read("s.json", text);
    ASSERT_EQ(prompts.size(), 2u);
    EXPECT_EQ(prompts[0].prompt, "a fox");
    EXPECT_EQ(prompts[0].negative, "");
    EXPECT_FALSE(prompts[0].seed);
    EXPECT_EQ(prompts[0].steps, 5);
    EXPECT_EQ(prompts[0].scale, 2.5);
    EXPECT_EQ(prompts[0].noise_sampler, "euler-ancestral");
    EXPECT_TRUE(prompts[0].idle.empty());
    EXPECT_EQ(prompts[1].seed, 4u);
    EXPECT_EQ(prompts[1].idle, (std::vector<std::string>{"noise_scheduler EULER_KARRAS", "text_encoder_1_layer_skip"}));
  }
}

// sample() of BaseSDTrainProcess.py: a sample's seed is that of those behind it too.
TEST_F(ForeignSamples, AiToolkitsAreRead) {
  const auto job = [&](const std::string& sample) {
    return read("j.yaml", "job: extension\nconfig:\n  process:\n    - type: sd_trainer\n      sample:\n" + sample);
  };
  const std::vector<SamplePrompt> plain =
      job("        seed: 42\n        walk_seed: true\n        prompts: ['a fox', 'a cat --w 128 --l 3']\n");
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[0].width, 512);
  EXPECT_EQ(plain[0].height, 512);
  EXPECT_EQ(plain[0].steps, 20);
  EXPECT_EQ(plain[0].scale, 7);
  EXPECT_EQ(plain[0].negative, "");
  EXPECT_EQ(plain[0].seed, 42u);
  EXPECT_EQ(plain[1].seed, 43u);
  EXPECT_EQ(plain[1].width, 128);
  EXPECT_EQ(plain[1].scale, 3);
  EXPECT_FALSE(plain[1].cfg);
  const std::vector<SamplePrompt> own =
      job("        sampler: euler_a\n        neg: dull\n        width: 64\n        samples:\n          - prompt: a\n"
          "          - {prompt: b, seed: 5, neg: grey, guidance_scale: 2, sample_steps: 3, height: 96}\n"
          "          - {prompt: c, ctrl_img: x.png}\n");
  ASSERT_EQ(own.size(), 3u);
  EXPECT_EQ(own[0].seed, 0u);
  EXPECT_EQ(own[0].negative, "dull");
  EXPECT_EQ(own[0].noise_sampler, "euler-ancestral");
  EXPECT_EQ(own[1].negative, "grey");
  EXPECT_EQ(own[1].scale, 2);
  EXPECT_EQ(own[1].steps, 3);
  EXPECT_EQ(own[1].width, 64);
  EXPECT_EQ(own[1].height, 96);
  EXPECT_EQ(own[2].seed, 5u);
  EXPECT_EQ(own[2].idle, std::vector<std::string>{"ctrl_img"});
}

Preview picture(uint8_t grey) {
  Image image{.width = 32, .height = 16, .rgb = std::vector<uint8_t>(32 * 16 * 3, grey)};
  return {.image = std::move(image), .texts = {}, .text = {}};
}

TEST(PreviewFolder, APromptKeepsItsNumber) {
  const TemporaryDirectory output;
  const auto prompts = [](const char* text) { return parse_sample_prompts(text, "p.txt"); };
  {
    PreviewFolder folder(output.path(), "a-1", prompts("fox\nowl --s 3\n"), {});
    for (const int64_t step : {0, 5, 10})
      for (const size_t i : {0, 1}) folder.add(step, i, picture(uint8_t(100 * i)));
    EXPECT_TRUE(folder.has(5));
    folder.draw_sheet();
  }
  EXPECT_TRUE(fs::exists(output / "samples/a-1-000010-01.png"));
  // Taken up at step 7, with one prompt gone and another come.
  PreviewFolder folder(output.path(), "a-1", prompts("bat\nowl --s 3\n"), 7);
  EXPECT_FALSE(fs::exists(output / "samples/a-1-000010-01.png")) << "steps behind it are not there";
  EXPECT_FALSE(folder.has(5)) << "not of the bat";
  folder.add(10, 0, picture(0));
  folder.add(10, 1, picture(9));
  EXPECT_TRUE(fs::exists(output / "samples/a-1-000010-02.png"));
  EXPECT_TRUE(fs::exists(output / "samples/a-1-000010-01.png"));
  EXPECT_EQ(folder.prompts(), (std::vector<std::string>{"fox", "owl --s 3", "bat"}));
  std::vector<std::pair<int64_t, size_t>> places;
  for (const StoredPreview& p : folder.all()) places.emplace_back(p.step, p.number);
  EXPECT_EQ(places, (std::vector<std::pair<int64_t, size_t>>{{0, 0}, {0, 1}, {5, 0}, {5, 1}, {10, 1}, {10, 2}}));
  const int before = read_image(output / "samples/sheet.png").height;
  folder.draw_sheet();
  EXPECT_GT(read_image(output / "samples/sheet.png").height, before) << "three rows";
  PreviewFolder anew(output.path(), "a-1", prompts("bat\n"), {});
  EXPECT_TRUE(anew.all().empty());
  EXPECT_EQ(anew.prompts(), std::vector<std::string>{"bat"});
}

TEST(PreviewFolder, TheSheetOfManyStepsStaysAPicture) {
  const TemporaryDirectory output;
  PreviewFolder folder(output.path(), "a", parse_sample_prompts("x", "p"), {});
  for (int64_t step = 0; step < 100; ++step) folder.add(step, 0, picture(uint8_t(step)));
  folder.draw_sheet();
  const Image sheet = read_image(output / "samples/sheet.png");
  EXPECT_LT(sheet.width, 16 * 300);
  EXPECT_EQ(sheet.rgb[size_t(sheet.width) * 3 * size_t(sheet.height / 2) + 3 * size_t(sheet.width - 30)], 99)
      << "the last";
}

class PreviewRun : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    fs::create_directory(folder_ / "pictures");
    for (const char* file : {"0002.png", "0002.txt", "0003.png", "0003.txt"})
      fs::copy_file(test::source_dir() / "data/tiny-style" / file, folder_ / "pictures" / file);
    write_plain(folder_ / "p.txt", "a red heart --w 64 --h 32 --d 7 --s 3\na star --n dull --l 3 --ss euler_a --s 2\n");
  }

  std::vector<std::string> arguments(const std::string& output, const std::vector<std::string>& more) const {
    const std::string model = (kGolden / "sdxl").string(), pictures = (folder_ / "pictures").string();
    return with_flags({"train",
                       "--model",
                       model,
                       "--dataset",
                       pictures,
                       "--output",
                       (folder_ / output).string(),
                       "--steps",
                       "5",
                       "--rank",
                       "4",
                       "--lr",
                       "1e-2",
                       "--resolution",
                       "64",
                       "--lora-dropout",
                       "0.2",
                       "--save-dtype",
                       "f32",
                       "--device",
                       std::string(test::backend().name())},
                      more);
  }
  Outcome train(const std::string& output, const std::vector<std::string>& more) const {
    return ChildProcess(arguments(output, more), folder_.path()).wait();
  }
  // With previews.
  Outcome show(const std::string& output, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--sample-prompts", (folder_ / "p.txt").string()});
    return train(output, more);
  }
  std::string result(const std::string& output) const { return tensors_of(folder_ / output / "lora.safetensors"); }
  std::vector<std::string> samples(const std::string& output) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / output / "samples"))
      if (entry.path().extension() == ".png") names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void expect_same_samples(const std::string& a, const std::string& b) const {
    ASSERT_EQ(samples(a), samples(b));
    for (const std::string& name : samples(a))
      EXPECT_EQ(read_plain(folder_ / a / "samples" / name), read_plain(folder_ / b / "samples" / name)) << name;
  }

  TemporaryDirectory folder_;
};

TEST_F(PreviewRun, DrawsBeforeBetweenAndBehindAndChangesNothing) {
  const Outcome outcome = show("out", {"--sample-every", "2", "--ema", "0.5"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("no previews"), std::string::npos) << outcome.out;
  EXPECT_EQ(samples("out"), (std::vector<std::string>{"lora-000000-00.png", "lora-000000-01.png", "lora-000002-00.png",
                                                      "lora-000002-01.png", "lora-000004-00.png", "lora-000004-01.png",
                                                      "lora-000005-00.png", "lora-000005-01.png", "sheet.png"}));
  const Image heart = read_image(folder_ / "out/samples/lora-000005-00.png");
  EXPECT_EQ(heart.width, 64);
  EXPECT_EQ(heart.height, 32);
  EXPECT_NE(heart.rgb, read_image(folder_ / "out/samples/lora-000000-00.png").rgb);
  EXPECT_EQ(read_image(folder_ / "out/samples/lora-000005-01.png").height, 64) << "of --resolution";
  const auto events = [&](const char* folder) { return fs::directory_iterator(folder_ / "out/logs" / folder)->path(); };
  const std::string records = read_plain(events("samples"));
  EXPECT_NE(records.find(read_plain(folder_ / "out/samples/lora-000004-01.png")), records.npos);

  ASSERT_EQ(train("plain", {"--ema", "0.5"}).code, 0);
  EXPECT_EQ(result("out"), result("plain"));
  EXPECT_EQ(logged(folder_ / "out"), logged(folder_ / "plain"));
}

// `generate --from` a preview draws it with the result, since it was drawn by the average that is saved.
TEST_F(PreviewRun, IsWhatGenerateDrawsWithTheResult) {
  const std::vector<std::string> texts = {"--targets", "unet.*attn*", "text_encoder.*q_proj"};
  for (const auto& more : {std::vector<std::string>{}, texts}) {
    fs::remove_all(folder_ / "out");
    std::vector<std::string> flags = more;
    flags.insert(flags.end(), {"--ema", "0.5"});
    const Outcome outcome = show("out", flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("no previews"), std::string::npos) << outcome.out;
    EXPECT_EQ(samples("out").size(), 2 * 2 + 1u) << "before the first step and behind the last";
    for (const char* index : {"00", "01"}) {
      const fs::path preview = folder_ / "out/samples" / (std::string("lora-000005-") + index + ".png");
      const std::string drawn = (folder_ / "drawn.png").string();
      const Outcome again =
          ChildProcess({"generate", "--from", preview.string(), "--lora", (folder_ / "out/lora.safetensors").string(),
                        "--out", drawn, "--overwrite", "--device", std::string(test::backend().name())},
                       folder_.path())
              .wait();
      ASSERT_EQ(again.code, 0) << again.err;
      EXPECT_EQ(read_image(preview).rgb, read_image(drawn).rgb) << index;
    }
  }
}

TEST_F(PreviewRun, GoesOnWhereItWas) {
  ASSERT_EQ(show("whole", {"--sample-every", "2"}).code, 0);
  ASSERT_EQ(show("halves", {"--sample-every", "2", "--steps", "3"}).code, 0);
  ASSERT_EQ(show("halves", {"--sample-every", "2", "--resume"}).code, 0);
  fs::remove(folder_ / "halves/samples/lora-000003-00.png"), fs::remove(folder_ / "halves/samples/lora-000003-01.png");
  for (const char* output : {"whole", "halves"}) fs::remove(folder_ / output / "samples/sheet.png");
  expect_same_samples("whole", "halves");
  EXPECT_EQ(result("whole"), result("halves"));

  // Killed behind a save and before its previews.
  ASSERT_EQ(show("cut", {"--save-every", "3", "--steps", "3"}).code, 0);
  for (const char* file : {"samples/lora-000003-00.png", "samples/lora-000003-01.png", "lora.safetensors"})
    fs::remove(folder_ / "cut" / file);
  ASSERT_EQ(show("cut", {"--save-every", "3", "--resume"}).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "cut/samples/lora-000003-01.png"));
}

TEST_F(PreviewRun, ComesWithWhatIsSavedAndWithEpochs) {
  ASSERT_EQ(show("saved", {"--save-every", "3"}).code, 0);
  EXPECT_EQ(samples("saved").size(), 3 * 2 + 1u);
  EXPECT_TRUE(fs::exists(folder_ / "saved/samples/lora-000003-00.png"));
  ASSERT_EQ(show("epochs", {"--sample-every-n-epochs", "2"}).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "epochs/samples/lora-000004-00.png")) << "two pictures an epoch";
  EXPECT_EQ(samples("epochs").size(), 3 * 2 + 1u);
}

TEST_F(PreviewRun, AFailureCostsNothing) {
  fs::create_directories(folder_ / "out/samples/lora-000002-00.png/in the way");
  fs::create_directories(folder_ / "out/state");
  write_plain(folder_ / "out/state/lock", "");  // as a run that was killed before its first state
  const Outcome outcome = show("out", {"--sample-every", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("step 2: no previews: "), std::string::npos) << outcome.out;
  EXPECT_TRUE(fs::exists(folder_ / "out/samples/lora-000004-01.png")) << "later ones come";
  ASSERT_EQ(train("plain", {}).code, 0);
  EXPECT_EQ(result("out"), result("plain"));
}

TEST_F(PreviewRun, DamagedOnesAreNoneAndThoseOfOthersStay) {
  ASSERT_EQ(show("out", {"--sample-every", "2", "--steps", "3"}).code, 0);
  write_plain(folder_ / "out/samples/lora-000002-00.png", "no picture");
  const Outcome outcome = show("out", {"--sample-every", "2", "--resume"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("no previews"), std::string::npos) << outcome.out;
  EXPECT_TRUE(fs::exists(folder_ / "out/samples/lora-000005-01.png"));

  fs::create_directories(folder_ / "mine/samples");
  write_plain(folder_ / "mine/samples/lora-1-2.png", "mine");
  expect_one_line(show("mine"), {"--output ", "mine: the run would write over what is there (samples)"});
  EXPECT_EQ(read_plain(folder_ / "mine/samples/lora-1-2.png"), "mine");
}

TEST_F(PreviewRun, ASignalEndsThem) {
  write_plain(folder_ / "p.txt", "a heart --s 1000 --w 256 --h 256\n");
  const ChildProcess run(
      with_flags(arguments("out", {}), {"--sample-prompts", (folder_ / "p.txt").string(), "--sample-every", "2"}),
      folder_.path());
  while (!fs::exists(folder_ / "out/samples/prompts.txt")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  run.signal(SIGINT);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome.out << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "out/samples/lora-000000-00.png"));
}

TEST_F(PreviewRun, WhatTheModelLacksIsOneLine) {
  const auto expect = [&](const std::string& line, std::initializer_list<std::string_view> parts) {
    write_plain(folder_ / "p.txt", line);
    const Outcome outcome = show("out");
    expect_one_line(outcome, parts);
    EXPECT_EQ(outcome.code, 2);
  };
  expect("x --w 65", {"--sample-prompts ", "p.txt: line 1: --w", "multiple of", "65"});
  expect("x --ss fancy", {"--ss", "euler", "\"fancy\""});
  expect("x --g 3", {"--g", "not told a guidance"});
  expect("x --s 4000", {"--s", "1000", "4000"});
  expect_one_line(train("out", {"--sample-every", "3"}), {"--sample-every", "--sample-prompts"});
  expect_one_line(train("out", {"--sample-prompts", kGolden.string()}), {"--sample-prompts"});
  write_plain(folder_ / "p.toml", "x");
  expect_one_line(train("out", {"--sample-prompts", (folder_ / "p.toml").string()}),
                  {"--sample-prompts", "p.toml: line 1"});
  expect_one_line(
      train("out", {"--sample-prompts", (folder_ / "p.txt").string(), "--train", "vae", "--lora-dropout", "0"}),
      {"--train vae"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

}  // namespace
}  // namespace wick
