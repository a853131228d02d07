// The commands from outside, on a tiny random SDXL.
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "cli/decoded.h"
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

TEST(Commands, NumbersAreDecimal) {
  expect_words(run_well("plan --device cpu --model tiny-llm --context 0100").out, {"Text of up to 100 tokens"});
}

const std::vector<std::string> kCommands = {"train",   "plan",    "generate", "chat",   "eval",        "merge",
                                            "convert", "inspect", "forward",  "doctor", "completions", "manual"};

TEST(Commands, HelpIsAskedForInMoreThanOneWay) {
  const std::string all = run_well("--help").out;
  EXPECT_EQ(run_well("-h").out, all);
  EXPECT_EQ(run_well("help").out, all);
  EXPECT_EQ(run_well("-V").out, run_well("--version").out);
  for (const std::string& command : kCommands) {
    const std::string help = run_well(command + " --help").out;
    EXPECT_NE(all.find("\n  " + command + " "), std::string::npos) << command;
    EXPECT_EQ(run_well(command + " -h").out, help);
    EXPECT_EQ(run_well("help " + command).out, help);
    EXPECT_EQ(run_well(command + " -V").out, run_well("-V").out);
  }
}

TEST(Commands, HelpOfTrainFollowsTheSubjects) {
  const std::string train = run_well("help train").out;
  size_t at = 0;
  for (const std::string group :
       {"Model and data", "LoRA", "Steps", "Optimizer", "Pictures", "Text", "Precision and memory", "Output"}) {
    const size_t found = train.find("\n" + group + ":\n");
    EXPECT_GT(found, at) << group;
    at = found;
  }
}

// The table of docs/defaults.md, of which tests/train/defaults.cpp has the rest: help has a sentence for what all
// models share, and a row for a model.
TEST(Commands, HelpHasTheDefaultsOfModels) {
  std::istringstream page(read_plain(test::source_dir() / "docs/defaults.md"));
  const std::string train = run_well("help train").out;
  const std::string helps[] = {train, run_well("help plan").out, run_well("help generate").out};
  const auto has = [](const std::string& help, const std::string& pattern) {
    EXPECT_TRUE(std::regex_search(help, std::regex(pattern))) << pattern << "\n" << help;
  };
  size_t models = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `")) continue;
    std::istringstream cells(
        std::regex_replace(std::regex_replace(line, std::regex("[|`]"), " "), std::regex("\\."), "\\."));
    std::string model, rank, alpha, lr, steps, row;
    cells >> model >> rank >> alpha >> lr >> steps;
    for (std::string cell; cells >> cell;) row += " +" + cell;
    for (const std::string& help : helps) {
      has(help, "rank " + rank + ", alpha " + alpha + ", a learning\\s+rate\\s+of\\s+" + lr + "\\s+and\\s+" + steps +
                    "\\s+steps");
      has(help, "\n +" + model + row + " *\n");
    }
    has(train, "\\(also\\s+--network-dim\\)");
    has(train, "--rank INT[^\\[]*\\[" + rank + "\\]");
    has(train, "--lr NUMBER[^\\[]*\\[" + lr + "\\]");
    has(train, "--steps INT[^\\[]*\\[" + steps + ",");
    ++models;
  }
  EXPECT_GE(models, size_t{8});
}

// The patterns that `train --help` names, and the modules that each takes.
TEST(Commands, TargetsAreWhatHelpSays) {
  const auto modules = [](const std::string& targets) {
    const std::string plan = run_well("plan --device cpu --model '" + kModel + "' --targets " + targets).out;
    const size_t at = plan.find(" on ") + 4;
    return std::stoi(plan.substr(at));
  };
  const int unet = modules("'unet.*'");
  EXPECT_EQ(modules("'unet.*' '-unet.conv_*' '-unet.*_embedding.*'"), unet - 6);
  EXPECT_EQ(modules("unet.conv_in unet.conv_out 'unet.time_embedding.*' 'unet.add_embedding.*'"), 6);
  EXPECT_EQ(modules("'text_encoder*' '-*.text_projection'"), modules("'text_encoder*'") - 1);
  EXPECT_EQ(modules("'text_encoder.*'") + modules("'text_encoder_2.*'"), modules("'text_encoder*'"));
  EXPECT_EQ(modules("'unet.*.attentions.*'"),
            modules("'unet.*' '-*.resnets.*' '-*samplers.*' '-unet.conv_*' '-unet.*_embedding.*'"));
  const std::string help = run_well("help train").out;
  for (const char* pattern :
       {"'unet.*.attentions.*'", "'unet.*.attn2.to_k'", "'unet.*.resnets.*.conv*'", "'text_encoder.*.q_proj'"}) {
    expect_words(help, {pattern});
    EXPECT_GT(modules(pattern), 0);
  }
}

// On a device of 4 GiB, which need not be here, SDXL's weights come from the host.
TEST(Commands, PlansWhatIsStreamed) {
  const std::string flags = "plan --model sdxl --quantize fp8 --device cuda ";
  const auto choice = [&](const std::string& more) {
    return nlohmann::json::parse(run_well(flags + "--json " + more).out)["choices"][0];
  };
  const auto small = choice("--memory 4GiB"), large = choice("--memory 40GiB");
  EXPECT_TRUE(small["fits"]);
  EXPECT_LE(small["bytes"]["total"].get<int64_t>(), int64_t{4} << 30);
  EXPECT_GT(small["stream_blocks"], 0);
  EXPECT_GT(small["host_bytes"], int64_t{1} << 28);
  EXPECT_EQ(large["stream_blocks"], 0);
  EXPECT_EQ(large["host_bytes"], 0);
  const std::string by_hand = run_well(flags + "--stream-blocks all").out;
  expect_words(by_hand, {"on the host", "weights that are streamed", "One picture"});
  const auto plan = nlohmann::json::parse(run_well(flags + "--json --stream-blocks all").out);
  for (const auto& one : {plan, plan["drawing"]}) {
    EXPECT_GT(one["host_bytes"], int64_t{1} << 28);
    EXPECT_EQ(one["staged_bytes"], 0) << "it may be locked, or what is there is not known";
  }
  EXPECT_EQ(nlohmann::json::parse(run_well(flags + "--json").out)["drawing"]["host_bytes"], 0);
  const auto of_four = nlohmann::json::parse(run_well(flags + "--json --stream-blocks all --gpus 4").out);
  EXPECT_EQ(of_four["host_bytes"], plan["host_bytes"]) << "one copy for all";
  expect_one_line(run_wick(flags + "--stream-blocks all --host-memory 10MiB"),
                  {"lock ", "10.0 MiB", "--stream-blocks", "--host-memory"});
  const Outcome limited = run_wick(flags + "--memory 4GiB --host-memory 10MiB");
  expect_one_line(limited, {"--memory 4GiB", "does not fit"});
  expect_words(limited.out, {"more would be streamed than the 10.0 MiB of --host-memory hold"});
}

TEST(Commands, UnderscoresInFlagsAreDashes) {
  // How much memory is free changes from one command to the next.
  const auto plan = [](const std::string& flags) {
    return std::regex_replace(run_well("plan --device cpu --model '" + kModel + "' " + flags).out,
                              std::regex("[0-9.]+ [A-Za-z]+ are free"), "");
  };
  EXPECT_EQ(plan("--batch_size 2 --gradient_checkpointing"), plan("--batch-size=2 --gradient-checkpointing"));
  EXPECT_EQ(plan("--batch_size=2"), plan("--batch-size 2"));
  const std::string missing = run_wick("eval --model tiny-llm --dataset a_b.jsonl").err;  // and not in values
  expect_words(missing, {"a_b.jsonl"});
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

// An existing file stays, unless with --overwrite; one that the command reads always stays.
TEST(Commands, NothingIsWrittenOverUnasked) {
  const TemporaryDirectory folder;
  const auto run_twice = [&](const std::string& command, const std::string& name) {
    const std::filesystem::path file = folder / name;
    SCOPED_TRACE(command);
    run_well(command + " '" + file.string() + "'");
    const std::string first = read_plain(file);
    write_plain(file, "mine");
    const Outcome again = run_wick(command + " '" + file.string() + "'");
    expect_one_line(again, {file.string() + ": the file exists", "--overwrite"});
    EXPECT_EQ(again.code, 1);
    EXPECT_EQ(read_plain(file), "mine");
    run_well(command + " '" + file.string() + "' --overwrite");
    EXPECT_EQ(read_plain(file), first);
  };
  run_twice("generate --model " + kModel + " --steps 1 --width 16 --height 16 --prompt x --out", "x.png");
  run_twice("generate --model " + kModel + " --steps 1 --width 16 --height 16 --prompt x --out", "y.PNG");
  run_twice("forward --model " + kModel + " --component unet --in " + (kGolden / "cases/unet.in.safetensors").string() +
                " --out",
            "out");
  const std::string llm = (test::source_dir() / "models/tiny-llm").string();
  run_twice("convert --model " + llm + " --dtype q8_0 --output", "x.gguf");
}

// A link in the model's folder is the model too.
TEST(Commands, TheModelIsNeverWrittenOver) {
  const TemporaryDirectory folder;
  const std::filesystem::path blob = folder / "blob", model = folder / "model";
  std::filesystem::copy(kModel, model, std::filesystem::copy_options::recursive);
  const std::filesystem::path weights = model / "unet/diffusion_pytorch_model.safetensors";
  std::filesystem::rename(weights, blob);
  std::filesystem::create_symlink(blob, weights);
  const std::string bytes = read_plain(blob);
  for (const std::filesystem::path& out : {blob, weights}) {
    const Outcome outcome =
        run_wick("forward --overwrite --model '" + model.string() + "' --component unet --in " +
                 (kGolden / "cases/unet.in.safetensors").string() + " --out '" + out.string() + "'");
    expect_one_line(outcome, {"--out", "never writes over"});
    EXPECT_EQ(outcome.code, 1);
  }
  EXPECT_EQ(read_plain(blob), bytes);
}

class Generate : public testing::Test {
 protected:
  Image generate(const std::string& name, const std::string& more) {
    run_well("generate --overwrite --model '" + kModel + "' --steps 2 --width 64 --height 48 --out '" +
             (folder / name).string() + "' --prompt 'a red fox' " + more);
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

TEST_F(Generate, BatchesAreThePicturesInTurn) {
  const std::string four = "--prompt 'a blue dog' --seed 1 --seed 2 ";
  const Image in_turn = generate("turn.png", four);
  for (const char* size : {"2", "3", "9"})
    EXPECT_LE(largest_difference(in_turn, generate("x.png", four + "--batch-size " + size)), 1) << size;
}

// The golden's draws are k-diffusion's; 8 bits are rounded.
TEST_F(Generate, GivenDrawsBecomeThePictureOfKDiffusion) {
  const SafetensorsFile told = SafetensorsFile::open(kGolden / "samplers/text_to_image.in.safetensors");
  const auto& request = told.metadata();
  run_well("generate --model '" + kModel + "' --sampler dpmpp-sde --noise '" +
           (kGolden / "samplers/stochastic.in.safetensors").string() + "' --prompt '" + request.at("prompt") +
           "' --negative '" + request.at("negative_prompt") + "' --steps " + request.at("steps") + " --cfg " +
           request.at("guidance_scale") + " --out '" + (folder / "x.png").string() + "'");
  EXPECT_LE(distance_from(kGolden / "samplers/stochastic.out.safetensors", "decoded", read_image(folder / "x.png")),
            0.51f);
}

TEST_F(Generate, DrawsFromAPicture) {
  const auto draw = [&](const std::string& name, const std::string& flags) {
    run_well("generate --model '" + kModel + "' --steps 10 --prompt x --out '" + (folder / name).string() + "' " +
             flags);
    return read_image(folder / name);
  };
  draw("from.png", "--width 64 --height 48 --seed 5");
  const std::string init = "--init '" + (folder / "from.png").string() + "' --strength ";
  const Image some = draw("some.png", init + "0.4");
  EXPECT_EQ(some.width, 64);  // the picture's size
  EXPECT_EQ(some.height, 48);
  EXPECT_NE(some.rgb, draw("more.png", init + "0.7").rgb);
  EXPECT_NE(some.rgb, draw("seed.png", init + "0.4 --seed 1").rgb);
  EXPECT_NE(draw("all.png", init + "1").rgb, draw("noise.png", "--width 64 --height 48").rgb);
  EXPECT_EQ(draw("wide.png", init + "0.4 --width 80").width, 80);
  run_well("generate --from '" + (folder / "some.png").string() + "' --out '" + (folder / "again.png").string() + "'");
  EXPECT_EQ(some.rgb, read_image(folder / "again.png").rgb);
}

// Also with LoRAs on the text encoders.
TEST_F(Generate, PromptsAreReadInTheSyntaxAskedFor) {
  const std::string comfyui = "--prompt-syntax comfyui ",
                    te = "--lora " + (kGolden / "lora_te.safetensors").string() + " ";
  std::string words;
  for (int i = 0; i < 90; ++i) words += " a";
  const auto with = [&](const std::string& prompt, const std::string& more) {
    run_well("generate --overwrite --model '" + kModel + "' --steps 2 --width 64 --height 48 --out '" +
             (folder / "x.png").string() + "' --prompt '" + prompt + "' " + more);
    return read_image(folder / "x.png").rgb;
  };
  EXPECT_EQ(with("a red fox", ""), with("a red fox", "--prompt-syntax plain"));
  EXPECT_EQ(with("a red fox" + words, ""), with("a red fox" + words + " dog", ""));
  for (const std::string& which : {std::string(), te}) {
    EXPECT_EQ(with("a red fox", which), with("a red fox", comfyui + which));
    EXPECT_NE(with("a (red:1.5) fox", comfyui + which), with("a red fox", which));
    EXPECT_NE(with("a red fox" + words, comfyui + which), with("a red fox" + words + " dog", comfyui + which));
    EXPECT_NE(with("a red fox", comfyui + which + "--negative '(blue:1.4)" + words + "'"), with("a red fox", which));
  }
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
               {"StableDiffusionXLPipeline", "SDXL's UNet", "a VAE", "a CLIP text encoder", "parameters"});
  const std::string flux = (test::source_dir() / "models/tiny-flux").string();
  expect_words(run_well("inspect --t5-tokenizer " + flux + "/tokenizer_2/spiece.model --clip-tokenizer " + flux +
                        "/tokenizer --vae " + flux + "/vae/diffusion_pytorch_model.safetensors")
                   .out,
               {"spiece.model\na tokenizer of T5, ", " tokens\n\n", "a tokenizer of CLIP, ", "a VAE"});
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
