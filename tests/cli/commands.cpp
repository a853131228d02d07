// The commands from outside, on a tiny random SDXL.
#include "cli/program.h"
#include "wick/io/image.h"
#include "wick/io/safetensors.h"

namespace wick {
namespace {

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "expected '" << word << "' in:\n" << text;
}

Outcome run_well(const std::string& arguments) {
  const Outcome outcome = run_wick(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome;
}

TEST(Commands, HelpAndVersion) {
  expect_words(run_well("--version").out, {"wick ", "."});
  expect_words(run_well("--help").out, {"generate", "inspect", "forward"});
  expect_words(run_well("generate --help").out,
               {"--model", "--lora", "--prompt", "--negative", "--steps", "--cfg", "--seed", "--sampler", "--width"});
}

TEST(Commands, PlanSaysWhatATrainingRunWouldTake) {
  const std::string plan = "plan --model '" + kModel + "' --rank 8 --batch-size 16 ";
  expect_words(run_well(plan + "--device cpu").out,
               {"LoRA of rank 8", "batches of 16, 128x128 pixels", "on cpu", "weights", "adapter", "optimizer",
                "activations", "total", "are free", "with --gradient-checkpointing", "with --batch-size 1"});
  expect_words(run_well(plan + "--device cuda --bf16 --gradient-checkpointing").out, {"bf16, on cuda:0", "context"});
  expect_words(run_well(plan + "--device cpu --train vae").out, {"The VAE"});
  EXPECT_NE(run_well(plan + "--device cpu").out, run_well(plan + "--device cpu --resolution 256").out);
}

int largest_difference(const Image& a, const Image& b) {
  if (a.rgb.size() != b.rgb.size()) return 255;
  int largest = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) largest = std::max(largest, std::abs(int(a.rgb[i]) - int(b.rgb[i])));
  return largest;
}

class Generate : public testing::Test {
 protected:
  Image generate(const std::string& name, const std::string& more) {
    run_well("generate --model '" + kModel + "' --steps 2 --width 64 --height 48 --out '" + (folder / name).string() +
             "' --prompt 'a red fox' " + more);
    return read_image(folder / name);
  }
  const TemporaryDirectory folder;
  const std::string lora = (kGolden / "lora_unet.safetensors").string();
};

TEST_F(Generate, DrawsTheSizeAskedFor) {
  const Image image = generate("x.png", "");
  EXPECT_EQ(image.width, 64);
  EXPECT_EQ(image.height, 48);
  EXPECT_EQ(image.rgb, generate("again.png", "--seed 0 --sampler euler --cfg 5").rgb);
  EXPECT_EQ(folder.entries(), size_t{2});
}

TEST_F(Generate, EveryFlagChangesThePicture) {
  const Image plain = generate("plain.png", "");
  for (const std::string flag :
       {"--seed 7", "--cfg 2", "--sampler ddim", "--negative 'blue'", "--negative ''", "--bf16"})
    EXPECT_NE(plain.rgb, generate("x.png", flag).rgb) << flag;
}

TEST_F(Generate, LorasAddUpByTheirStrength) {
  const Image plain = generate("plain.png", ""), whole = generate("whole.png", "--lora " + lora);
  EXPECT_GT(largest_difference(plain, whole), 4);
  EXPECT_LE(largest_difference(plain, generate("x.png", "--lora " + lora + ":0")), 1);
  EXPECT_LE(largest_difference(whole, generate("x.png", "--lora " + lora + ":1.0")), 0);
  EXPECT_LE(largest_difference(plain, generate("x.png", "--lora " + lora + ":0.5 --lora " + lora + ":-0.5")), 1);
}

TEST_F(Generate, AColonMayStandInAFileName) {
  std::filesystem::copy_file(lora, folder / "a:2");
  EXPECT_EQ(generate("x.png", "--lora " + lora).rgb,
            generate("y.png", "--lora '" + (folder / "a:2").string() + "'").rgb);
}

TEST_F(Generate, SeveralPicturesMakeAGrid) {
  const Image grid = generate("grid.png", "--prompt 'a blue dog' --seed 1 --seed 2");
  const Image compared = generate("compared.png", "--prompt 'a blue dog' --seed 1 --seed 2 --compare --lora " + lora);
  EXPECT_GT(grid.width, 2 * 256);
  EXPECT_GT(grid.height, 2 * 192);
  EXPECT_GT(compared.height, 4 * 192);
}

TEST(Inspect, TellsLorasAndModels) {
  expect_words(run_well("inspect " + (kGolden / "lora_unet.safetensors").string()).out,
               {"LoRA for SDXL", "unet", "192", "2.5", "ss_network_dim = 4"});
  expect_words(run_well("inspect " + (kGolden / "lora_te.safetensors").string()).out,
               {"LoRA for SDXL", "text_encoder ", "text_encoder_2"});
  expect_words(run_well("inspect --tensors " + (kGolden / "gguf/model.gguf").string()).out,
               {"llama model, GGUF version 3", "Q4_K 432 B", "general.architecture = llama", "test.strings = 3 strings",
                "[3, 256]", "Q2_K"});
  expect_words(run_well("inspect " + kModel).out,
               {"StableDiffusionXLPipeline", "SDXL UNet", "VAE", "CLIP text encoder with projection", "parameters"});
  expect_words(run_well("inspect --tensors " + kModel + "/unet").out, {"conv_in.weight", "[", "F32"});
  // Bytes as everywhere.
  expect_words(run_well("inspect " + kModel + "/unet").out, {"F32 ", " KiB"});
}

TEST(Inspect, KeepsControlCharactersOffTheTerminal) {
  const TemporaryDirectory folder;
  save_safetensors(folder / "x", {{"a\x1b[31m", Tensor::of(std::vector<float>{1}, {1})}}, {{"k\x07", "v\nw"}});
  const Outcome outcome = run_well("inspect --tensors '" + (folder / "x").string() + "'");
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(outcome.out.find('\x07'), std::string::npos);
}

TEST(Forward, WritesWhatDiffusersDoes) {
  const TemporaryDirectory folder;
  run_well("forward --model " + kModel + " --component unet --in " +
           (kGolden / "cases/unet_lora_grad.in.safetensors").string() + " --lora " +
           (kGolden / "lora_unet.safetensors").string() + " --grad --out '" + (folder / "out").string() + "'");
  const SafetensorsFile found = SafetensorsFile::open(folder / "out");
  const SafetensorsFile expected = SafetensorsFile::open(kGolden / "cases/unet_lora_grad.out.safetensors");
  for (const auto& [name, info] : expected.tensors()) EXPECT_TRUE(found.has(name)) << name;
  EXPECT_NEAR(found.load("loss").item() / expected.load("loss").item(), 1, 1e-4);
}

}  // namespace
}  // namespace wick
