// `wick convert` of adapters, and `wick inspect` of all kinds of them.
#include <gtest/gtest.h>

#include "cli/program.h"
#include "wick/io/safetensors.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const std::string kFlux = (test::source_dir() / "models/tiny-flux").string();

Outcome run_well(const std::string& arguments) {
  Outcome outcome = run_wick(arguments);
  EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
  return outcome;
}

std::map<std::string, Tensor> tensors_of(const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, Tensor> all;
  for (const auto& [key, info] : file.tensors()) all[key] = file.load(key);
  return all;
}

void expect_has(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
}

// tiny-flux's LoRA as `wick train` would write it, of two modules and a text encoder's.
void write_lora(const fs::path& path) {
  Rng rng(1);
  std::map<std::string, Tensor> tensors;
  const auto add = [&](const std::string& base, int64_t out, int64_t in, bool is_dead = false) {
    tensors[base + ".lora_down.weight"] = cast(random_normal({2, in}, rng), DType::bf16);
    tensors[base + ".lora_up.weight"] =
        is_dead ? zeros({out, 2}, DType::bf16) : cast(random_normal({out, 2}, rng), DType::bf16);
    tensors[base + ".alpha"] = full({}, 1);
  };
  const SafetensorsFile model = SafetensorsFile::open(kFlux + "/transformer/diffusion_pytorch_model.safetensors");
  const Shape q = model.tensors().at("transformer_blocks.0.attn.to_q.weight").shape,
              out = model.tensors().at("transformer_blocks.0.attn.to_out.0.weight").shape;
  add("lora_unet_double_blocks_0_img_attn_qkv", 3 * q[0], q[1]);
  add("lora_unet_double_blocks_0_img_attn_proj", out[0], out[1], /*is_dead=*/true);
  save_safetensors(path, tensors, {{"ss_network_dim", "2"}});
}

TEST(ConvertAdapter, ThereAndBack) {
  const TemporaryDirectory folder;
  const auto at = [&](const char* name) { return (folder / name).string(); };
  write_lora(folder / "l.safetensors");
  const auto convert = [&](const std::string& from, const std::string& to, const std::string& output) {
    return run_well("convert --model " + kFlux + " --lora " + from + " --to " + to + " --output " + output).out;
  };
  const auto before = tensors_of(folder / "l.safetensors");
  for (const std::string to : {"comfy", "onetrainer", "diffusers", "peft"}) {
    const std::string there = at(to.c_str()) + (to == "peft" ? "" : ".safetensors"), back = at("back.safetensors");
    expect_has(convert(at("l.safetensors"), to, there), {"Wrote", to == "comfy" ? "2 LoRA modules" : "4 LoRA modules"});
    convert(there, "kohya", back + " --overwrite");
    const auto after = tensors_of(back);
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [key, value] : before) EXPECT_EQ(after.at(key).to_vector(), value.to_vector()) << key;
  }
}

// A model that no names or shapes tell is the one that the file itself names, if its modules fit that.
TEST(ConvertAdapter, TheFileMayNameItsModel) {
  const TemporaryDirectory folder;
  const std::string lora = (folder / "a.safetensors").string(), to = (folder / "b.safetensors").string();
  write_lora(lora);
  const std::map<std::string, Tensor> tensors = tensors_of(lora);
  const std::string convert = "convert --lora '" + lora + "' --to diffusers --overwrite --output '" + to + "'";
  for (const std::map<std::string, std::string>& metadata : {std::map<std::string, std::string>{},
                                                             {{"ss_sd_model_name", ""}},
                                                             {{"ss_sd_model_name", "my.safetensors"}},
                                                             {{"ss_sd_model_name", "tiny"}},
                                                             {{"ss_sd_model_name", "flux-dev"}}}) {
    save_safetensors(lora, tensors, metadata);
    const Outcome outcome = run_wick(convert);
    expect_one_line(outcome, {"--model"});
    EXPECT_EQ(outcome.code, 1);
  }
  save_safetensors(lora, tensors, {{"ss_sd_model_name", "tiny-flux"}});
  run_well(convert);
  EXPECT_FALSE(tensors_of(to).empty());
}

TEST(ConvertAdapter, ResizesWithoutTheModel) {
  const TemporaryDirectory folder;
  write_lora(folder / "l.safetensors");
  const std::string small = (folder / "s.safetensors").string();
  run_well("convert --lora " + (folder / "l.safetensors").string() + " --rank 1 --output " + small);
  const auto tensors = tensors_of(small);
  EXPECT_EQ(tensors.at("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight").dim(0), 1);
  EXPECT_EQ(tensors.at("lora_unet_double_blocks_0_img_attn_qkv.alpha").item(), 0.5f);
  EXPECT_EQ(SafetensorsFile::open(small).metadata().at("ss_network_dim"), "1");
}

TEST(ConvertAdapter, WrongInputsAreOneLine) {
  const TemporaryDirectory folder;
  write_lora(folder / "l.safetensors");
  const std::string lora = "convert --lora " + (folder / "l.safetensors").string(),
                    output = " --output " + (folder / "out").string();
  const auto refuse = [&](int code, const std::string& arguments, const std::vector<std::string>& words) {
    const Outcome outcome = run_wick(arguments + output);
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, code) << arguments;
    EXPECT_FALSE(fs::exists(folder / "out"));
  };
  refuse(2, lora, {"--lora", "--to", "--rank"});
  refuse(2, lora + " --to gguf", {"--to gguf", "--model"});
  refuse(2, lora + " --to kohya --dtype bf16", {"--dtype"});
  refuse(2, "convert --to kohya --model " + kFlux, {"--to", "--lora"});
  refuse(2, "convert --extract " + kFlux + " --rank 2", {"--extract", "--base"});
  refuse(2, "convert --extract " + kFlux + " --base " + kFlux, {"--extract", "--rank"});
  refuse(1, lora + " --to kohya", {"l.safetensors", "fits none of the models", "--model"});
  refuse(1, lora + " --to kohya --model " + (test::source_dir() / "models/tiny-sd3").string(),
         {"l.safetensors", "no adapter of", "lora_unet_double_blocks_0"});
  refuse(1, "convert --extract " + kFlux + " --base " + kFlux + " --rank 2", {"none of", "differs"});
  refuse(1, "convert --lora " + kFlux + "/transformer/diffusion_pytorch_model.safetensors --to kohya",
         {"expected a LoRA", "FLUX's transformer"});
}

TEST(InspectAdapter, ShowsNormsAndPrograms) {
  const TemporaryDirectory folder;
  write_lora(folder / "l.safetensors");
  const std::string out = run_well("inspect " + (folder / "l.safetensors").string()).out;
  expect_has(out, {"LoRA for FLUX", "transformer", "norms of the changes by block", "double_blocks.0", "###",
                   "dead: 1 module changes nothing\n  lora_unet_double_blocks_0_img_attn_proj", "loaded by",
                   "ComfyUI                all modules", "sd-scripts", "ss_network_dim = 2"});
  for (size_t begin = 0, end = 0; end != out.npos; begin = end + 1) {
    end = out.find('\n', begin);
    if (out.compare(begin, 1, "/") == 0) continue;  // the file's path
    EXPECT_LE(std::min(end, out.size()) - begin, 80u) << out.substr(begin, end - begin);
  }
}

TEST(InspectAdapter, KnowsAllKinds) {
  const TemporaryDirectory folder;
  Rng rng(2);
  const auto random = [&](const Shape& shape) { return random_normal(shape, rng); };
  const std::string block = "lora_unet_input_blocks_4_1_transformer_blocks_";
  std::map<std::string, Tensor> tensors = {
      {block + "0_attn1_to_q.hada_w1_a", random({6, 2})},
      {block + "0_attn1_to_q.hada_w1_b", random({2, 5})},
      {block + "0_attn1_to_q.hada_w2_a", random({6, 2})},
      {block + "0_attn1_to_q.hada_w2_b", random({2, 5})},
      {block + "0_attn1_to_q.alpha", full({}, 1)},
      {block + "0_attn1_to_k.lokr_w1", full({2, 2}, 1)},
      {block + "0_attn1_to_k.lokr_w2", full({3, 3}, 2)},
      {block + "0_attn1_to_v.diff", full({5, 5}, 3)},
      {block + "0_attn2_to_q.oft_blocks", random({2, 3, 3})},
      {block + "0_norm1.w_norm", full({4}, 1)},
      {block + "1_attn1_to_q.lora_down.weight", random({2, 5})},
      {block + "1_attn1_to_q.lora_up.weight", random({6, 2})},
      {block + "1_attn1_to_q.dora_scale", random({6, 1})},
      {"bundle_emb.cat.string_to_param.*", random({2, 4})},
      {"lora_unet_down_blocks_1_attentions_0_transformer_blocks_1_attn1_to_q.lora_down.weight", random({2, 5})},
      {"lora_unet_down_blocks_1_attentions_0_transformer_blocks_1_attn1_to_q.lora_up.weight", random({6, 2})}};
  save_safetensors(folder / "all.safetensors", tensors);
  const std::string out = run_well("inspect " + (folder / "all.safetensors").string()).out;
  expect_has(out, {"LoHa", "LoKr", "full difference", "OFT", "norm difference", "DoRA", "bundle_emb.cat",
                   "1 module not among them", "on the same rows of one layer"});
  expect_has(out, {"unet.down_blocks.1"});
}

}  // namespace
}  // namespace wick
