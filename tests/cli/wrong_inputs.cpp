// Every wrong input ends with a code from 1 to 127 and one line that names the file or flag, what was found and what
// was expected.
#include "cli/program.h"
#include "source_dir.h"
#include "wick/io/safetensors.h"

namespace wick {
namespace {

struct Wrong {
  std::string arguments;  // $M: the model, $G: tests/golden, $D: a data set, $T: an empty folder
  std::vector<std::string> words;
};

const std::string kGenerate = "generate --model $M --prompt x --out $T/x.png ";
const std::string kForward = "forward --model $M --component unet --in $G/cases/unet.in.safetensors --out $T/x ";

const std::string kPlan = "plan --model $M ";
const std::string kTrain = "train --model $M --dataset $D --output $T/out --steps 1 ";

const std::vector<Wrong> kWrong = {
    {"", {"command", "train", "generate"}},
    {"--nonsense", {"--nonsense"}},
    {"draw", {"draw"}},

    {"generate", {"--model", "required"}},
    {"generate --model $M --prompt x", {"--out", "required"}},
    {kGenerate + "--nonsense", {"--nonsense"}},
    {kGenerate + "stray", {"stray"}},
    {kGenerate + "--steps", {"--steps"}},
    {kGenerate + "--steps 0", {"--steps", "'0'", "at least 1"}},
    {kGenerate + "--steps -3", {"--steps", "'-3'", "at least 1"}},
    {kGenerate + "--steps 1.5", {"--steps", "'1.5'", "integer"}},
    {kGenerate + "--steps 010x", {"--steps", "'010x'", "integer"}},
    {kGenerate + "--steps ''", {"--steps", "''", "integer"}},
    {kGenerate + "--steps 99999999999999999999", {"--steps", "integer"}},
    {kGenerate + "--steps 1001", {"--steps", "1001", "1000"}},
    {kGenerate + "--steps 1 --steps 2", {"--steps"}},
    {kGenerate + "--cfg nan", {"--cfg", "'nan'", "number"}},
    {kGenerate + "--cfg inf", {"--cfg", "'inf'", "number"}},
    {kGenerate + "--cfg -1", {"--cfg", "'-1'", "number"}},
    {kGenerate + "--cfg 0.5", {"--cfg", "'0.5'", "1 to 100"}},
    {kGenerate + "--cfg five", {"--cfg", "'five'", "number"}},
    {kGenerate + "--seed -1", {"--seed", "'-1'", "integer"}},
    {kGenerate + "--seed nan", {"--seed", "'nan'", "integer"}},
    {kGenerate + "--sampler heun", {"--sampler", "'heun'", "euler, ddim"}},
    {kGenerate + "--width 65", {"--width", "65", "multiple of 8"}},
    {kGenerate + "--height 4", {"--height", "4", "multiple of 8"}},
    {kGenerate + "--height 0", {"--height", "'0'"}},
    {kGenerate + "--width 1000000", {"--width", "1000000", "16384"}},
    {kGenerate + "--bf16 --fp16", {"--bf16", "--fp16"}},
    {kGenerate + "--compare", {"--compare", "--lora"}},

    {"generate --model $T --prompt x --out $T/x.png", {"--model", "$T", "model_index.json"}},
    {"generate --model $T/none --prompt x --out $T/x.png", {"--model", "$T/none", "diffusers folder"}},
    {"generate --model $M/model_index.json --prompt x --out $T/x.png", {"--model", "diffusers folder", "a file"}},
    {"generate --model '' --prompt x --out $T/x.png", {"--model"}},
    {"generate --model sdxl --prompt x --out $T/x.png", {"sdxl", "stabilityai", "$T"}},
    {"generate --model some/body --prompt x --out $T/x.png", {"some/body", "models--some--body"}},

    {"generate --model $M --prompt x --out $T", {"--out", "$T", "directory"}},
    {"generate --model $M --prompt x --out $T/", {"--out", "$T", "directory"}},
    {"generate --model $M --prompt x --out ''", {"--out"}},
    {"generate --model $M --prompt x --out $T/none/x.png", {"--out", "$T/none", "does not exist"}},
    {"generate --model $M --prompt x --out $M/model_index.json/x.png", {"--out", "model_index.json", "folder"}},
    {"generate --model $M --prompt x --out /dev/full", {"--out", "/dev/full", "regular"}},

    {kGenerate + "--lora $T/none.safetensors", {"--lora", "$T/none.safetensors", "no such file"}},
    {kGenerate + "--lora $T", {"--lora", "$T", "folder"}},
    {kGenerate + "--lora $G/lora_unet.safetensors:strong", {"--lora", "'strong'", "finite number"}},
    {kGenerate + "--lora $G/lora_unet.safetensors:nan", {"--lora", "'nan'", "finite number"}},
    {kGenerate + "--lora $G/lora_unet.safetensors:", {"--lora", "''", "finite number"}},
    {kGenerate + "--lora $M/model_index.json", {"--lora $M/model_index.json"}},
    {kGenerate + "--lora $M/model_index.json:0.5", {"--lora $M/model_index.json: "}},
    {kGenerate + "--lora $G/llama/llama2/adapter",
     {"--lora $G/llama/llama2/adapter/adapter_model.safetensors", "fit no layer"}},
    {kGenerate + "--lora $M/unet/diffusion_pytorch_model.safetensors", {"diffusion_pytorch_model.safetensors", "LoRA"}},

    {"train", {"--model"}},
    {kTrain + "--nonsense", {"--nonsense"}},
    {kTrain + "--rank 0", {"--rank", "'0'", "1"}},
    {kTrain + "--rank nan", {"--rank", "'nan'", "integer"}},
    {kTrain + "--lr nan", {"--lr", "'nan'", "number"}},
    {kTrain + "--lr -1", {"--lr", "'-1'", "number"}},
    {kTrain + "--alpha inf", {"--alpha", "'inf'", "number"}},
    {kTrain + "--batch-size 0", {"--batch-size", "'0'"}},
    {kTrain + "--lr-schedule step", {"--lr-schedule", "'step'", "cosine"}},
    {kTrain + "--config $T/none.toml", {"--config $T/none.toml", "No such file"}},
    {"train --model $T/none --dataset $D --output $T/out", {"--model", "$T/none"}},
    {"train --model $M --dataset $T --output $T/out", {"--dataset $T"}},
    {"train --model $M --dataset '' --output $T/out", {"--dataset", "''"}},
    {"train --model $M --dataset $T/none --output $T/out", {"--dataset $T/none"}},
    {"train --model $M --dataset $D/none --output $M/model_index.json",
     {"--output", "found the file $M/model_index.json"}},
    {"train --model $M --dataset $D/none --output $M/model_index.json/x",
     {"--output", "found the file $M/model_index.json"}},

    {kTrain + "--device cpu --batch-size 65536 --resolution 4096",
     {"would need", "on cpu", "are free", "--batch-size 1", "save"}},

    {"plan", {"--model"}},
    {kPlan + "--nonsense", {"--nonsense"}},
    {kPlan + "--rank 0", {"--rank", "'0'", "1"}},
    {kPlan + "--resolution 8", {"--resolution", "8"}},
    {kPlan + "--device tpu", {"--device", "'tpu'"}},
    {kPlan + "--bf16 --fp16", {"--bf16", "--fp16"}},
    {kPlan + "--targets nothing*", {"--targets", "nothing*", "it has unet.*.attn1.to_k, ", "…"}},
    {"plan --model $T/none", {"--model", "$T/none"}},

    {"inspect", {"file", "required"}},
    {"inspect ''", {"file", "found none"}},
    {"inspect $T/none", {"$T/none", "no such file"}},
    {"inspect $T", {"$T", "safetensors"}},
    {"inspect $M/model_index.json", {"model_index.json"}},
    {"inspect $M --nonsense", {"--nonsense"}},

    {"forward", {"required"}},
    {"forward --model $M --component vae --in x --out $T/x", {"--component", "'vae'", "vae.encoder"}},
    {"forward --model $M --component unet --in $T/none --out $T/x", {"--in", "$T/none", "no such file"}},
    {"forward --model $M --component unet --in $T --out $T/x", {"--in", "$T", "directory"}},
    {"forward --model $M --component vae.decoder --in $G/cases/unet.in.safetensors --out $T/x",
     {"--in $G/cases/unet.in.safetensors", "latent"}},
    {kForward + "--grad", {"unet.in.safetensors", "target"}},
    {kForward + "--lora $G/lora_te.safetensors", {"lora_te.safetensors"}},
    {"forward --model $M --component unet --in $G/cases/unet.in.safetensors --out $T", {"--out", "$T", "directory"}},
};

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

TEST(WrongInputs, EndWithOneLine) {
  for (const Wrong& wrong : kWrong) {
    const TemporaryDirectory folder;
    const auto filled = [&](std::string text) {
      text = replace_all(replace_all(text, "$M", kModel), "$G", kGolden.string());
      text = replace_all(text, "$D", (test::source_dir() / "data/tiny-style").string());
      return replace_all(text, "$T", folder.path().string());
    };
    SCOPED_TRACE("wick " + wrong.arguments);
    std::vector<std::string> words;
    for (const std::string& word : wrong.words) words.push_back(filled(word));
    const Outcome outcome = run_wick(filled(wrong.arguments), "HF_HOME='" + folder.path().string() + "'");
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(folder.entries(), size_t{0}) << "something was written";
  }
}

TEST(WrongInputs, ADamagedModelNamesTheFile) {
  const TemporaryDirectory folder;
  const std::filesystem::path model = folder / "model";
  std::filesystem::copy(kModel, model, std::filesystem::copy_options::recursive);
  const std::string command =
      "generate --model '" + model.string() + "' --prompt x --out '" + (folder / "x.png").string() + "'";

  const auto damage = [&](const std::string& file, const std::string& bytes, const std::vector<std::string>& words) {
    const std::string whole = read_plain(model / file);
    write_plain(model / file, bytes);
    expect_one_line(run_wick(command), words);
    write_plain(model / file, whole);
  };
  damage("unet/config.json", "{", {"unet/config.json"});
  damage("scheduler/scheduler_config.json", R"({"prediction_type": "v_prediction"})",
         {"scheduler_config.json", "prediction_type", "epsilon", "v_prediction"});
  damage("tokenizer/merges.txt", "\xff\xfe", {"merges.txt"});
  damage("model_index.json", "[]", {"model_index.json"});
  const std::string weights = "vae/diffusion_pytorch_model.safetensors";
  damage(weights, read_plain(model / weights).substr(0, 5000), {weights});
  damage(weights, "", {weights});
}

TEST(WrongInputs, AFullDiskIsOneLine) {
  const TemporaryDirectory folder;
  const std::string out = (folder / "x.png").string();
  // A limit of one block stands for the full disk.
  const Outcome limited =
      run_wick("generate --model " + kModel + " --prompt x --steps 1 --out '" + out + "'", "ulimit -f 1;");
  expect_one_line(limited, {out});
  EXPECT_EQ(folder.entries(), size_t{0});

  const std::string text = "generate --model tiny-llm --prompt x --max-tokens 2";
  for (const std::string& command : {"inspect " + kModel, text, text + " --json", std::string("chat --model tiny-llm")})
    expect_one_line(run_wick(command + " >/dev/full", "echo hello |"), {"standard output"});
}

TEST(WrongInputs, AReaderThatStopsEarlyIsNone) {
  const Outcome outcome = run_wick("inspect --tensors " + kModel + " | head -1");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace wick
