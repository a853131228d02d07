// FLUX and SD3 from outside: plans of the models that Wick knows, pictures from given noise, and wrong inputs.
#include <algorithm>
#include <cmath>

#include "cli/decoded.h"
#include "cli/program.h"
#include "flow_folder.h"
#include "wick/io/gguf.h"
#include "wick/io/image.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class FlowModels : public testing::Test {
 protected:
  std::string model(const test::FlowFolder& which) const { return " --model '" + which.path().string() + "' "; }
  std::string out(const char* name) const { return " --out '" + (folder / name).string() + "' "; }
  std::string draw(const std::string& which) const { return "generate --prompt x" + which + out("x.png"); }
  // The cache of the Hub is empty, and nothing is written.
  void expect_wrong(int code, const std::string& arguments, const Words& words) const {
    SCOPED_TRACE("wick " + arguments);
    const size_t before = folder.entries();
    const Outcome outcome = run_wick(arguments, "HF_HOME='" + folder.path().string() + "'");
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, code);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(folder.entries(), before);
  }
  // After something was printed.
  void expect_failure(const std::string& arguments, const Words& words) const {
    SCOPED_TRACE("wick " + arguments);
    const Outcome outcome = run_wick(arguments, "HF_HOME='" + folder.path().string() + "'");
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, 1);
  }
  Outcome run_well(const std::string& arguments) const {
    const Outcome outcome = run_wick(arguments, "HF_HOME='" + folder.path().string() + "'");
    EXPECT_EQ(outcome.code, 0) << arguments << '\n' << outcome.err;
    return outcome;
  }

  const TemporaryDirectory folder;
  const test::FlowFolder flux_{"flux_pictures"}, sd3_{"sd3"};
  const std::string flux = model(flux_), sd3 = model(sd3_), sdxl = " --model '" + kModel + "' ";
};

const char* const kKnown[] = {"sdxl",       "flux-dev",     "flux-schnell", "flux-krea-dev",
                              "sd3-medium", "sd3.5-medium", "sd3.5-large",  "sd3.5-large-turbo"};

TEST_F(FlowModels, KnownOnesArePlannedWithoutAFile) {
  for (const std::string name : kKnown) {
    const std::string plan =
        run_well("plan --model " + name + " --bf16 --gradient-checkpointing --rank 16 --device cuda").out;
    for (const char* word : {"LoRA of rank 16", "batches of 1, 1024x1024 pixels", "weights", "activations", "total",
                             "One picture of 1024x1024 pixels; bf16, on cuda:0"})
      EXPECT_NE(plan.find(word), std::string::npos) << name << ": expected '" << word << "' in:\n" << plan;
  }
}

TEST_F(FlowModels, KnownOnesThatAreNotHereSayHowToGetThem) {
  const std::string data = (test::source_dir() / "data/tiny-style").string();
  for (const std::string name : kKnown)
    for (const std::string& command :
         {"generate --prompt x --model " + name + out("x.png"),
          "train --model " + name + " --dataset '" + data + "' --output '" + (folder / "out").string() + "'"})
      expect_wrong(1, command, {"--model " + name, "models--", "hf download ", "licence"});
  expect_wrong(1, draw(" --model flux-dev"),
               {"black-forest-labs/FLUX.1-dev", "--transformer, --clip-l, --t5 and --vae"});
  expect_wrong(1, draw(" --model sd3.5-large"), {"download stabilityai/stable-diffusion-3.5-large`", "--clip-g, --t5"});
  expect_wrong(1, draw(" --model black-forest-labs/FLUX.1-schnell"), {"hf download black-forest-labs/FLUX.1-schnell"});
}

// A model in the cache wins over the configs that Wick has.
TEST_F(FlowModels, KnownOnesAreTakenFromTheCache) {
  const fs::path root = folder / "hub/models--black-forest-labs--FLUX.1-dev";
  fs::create_directories(root / "refs");
  write_plain(root / "refs/main", "abc\n");
  fs::create_directories(root / "snapshots");
  fs::copy(flux_.path(), root / "snapshots/abc", fs::copy_options::recursive);
  EXPECT_NE(run_well("plan --model flux-dev --device cpu").out.find(" 64x64 pixels"), std::string::npos);
  run_well("generate --model flux-dev --prompt x --steps 1 --t5-tokens 8 --device cpu" + out("x.png"));
  fs::remove(root / "snapshots/abc/model_index.json");
  expect_wrong(1, "plan --model flux-dev", {"model_index.json", "hf download"});
}

// The variables that huggingface_hub reads, and the one of which it was earlier.
TEST_F(FlowModels, TheCacheIsWhereHuggingFaceHasIt) {
  const std::string command = "generate --prompt x --model flux-dev" + out("x.png");
  for (const auto& [environment, hub] : {std::pair{"HF_HUB_CACHE=/none/a", "/none/a"},
                                         {"HUGGINGFACE_HUB_CACHE=/none/b", "/none/b"},
                                         {"HF_HOME=/none/c", "/none/c/hub"},
                                         {"HF_HOME='~/d' HOME=/none", "/none/d/hub"},
                                         {"XDG_CACHE_HOME=/none/e", "/none/e/huggingface/hub"},
                                         {"HOME=/none/f", "/none/f/.cache/huggingface/hub"}}) {
    const Outcome outcome =
        run_wick(command, "HF_HUB_CACHE= HUGGINGFACE_HUB_CACHE= HF_HOME= XDG_CACHE_HOME= " + std::string(environment));
    EXPECT_EQ(outcome.code, 1);
    expect_one_line(outcome, {"there is no " + std::string(hub) + "/models--black-forest-labs--FLUX.1-dev;"});
  }
}

// The inputs of modulations are trained: their weights cannot leave the device.
TEST_F(FlowModels, APlanSaysWhereModulationsStay) {
  const std::string command = "plan --bf16 --device cuda --resolution 64", words = "which cannot be made ahead";
  const auto says = [&](const std::string& more) {
    return run_well(command + more).out.find(words) != std::string::npos;
  };
  for (const auto& [which, t5] : {std::pair{flux, "text_encoder_2"}, {sd3, "text_encoder_3"}}) {
    EXPECT_FALSE(says(which));
    EXPECT_FALSE(says(which + "--targets 'transformer.*attn*' " + t5 + ".*"));
    EXPECT_TRUE(says(which + "--targets 'text_encoder.*'"));
    EXPECT_FALSE(run_well("plan --device cpu --resolution 64 --targets 'text_encoder.*'" + which).out.find(words) !=
                 std::string::npos);
  }
  EXPECT_FALSE(says(sdxl + "--targets 'text_encoder.*'"));
}

// To 8 bits, which are rounded.
TEST_F(FlowModels, GivenNoiseBecomesThePictureOfDiffusers) {
  const auto expect_picture = [&](const std::string& which, const std::string& golden, const std::string& name,
                                  const std::string& more) {
    const SafetensorsFile in = SafetensorsFile::open(kGolden / golden / "pictures.in.safetensors");
    const auto& told = in.metadata();
    run_well("generate --overwrite --device cpu --noise '" + in.path().string() + "' --prompt '" + told.at("prompt") +
             "' --steps " + told.at("num_inference_steps") + " --t5-tokens " + told.at("max_sequence_length") + which +
             more + out("x.png"));
    EXPECT_LE(
        distance_from(kGolden / golden / "pictures.out.safetensors", name + ".decoded", read_image(folder / "x.png")),
        0.51f)
        << golden << " " << name;
  };
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "flux_pictures/pictures.in.safetensors");
  const std::string negative = " --negative '" + in.metadata().at("negative_prompt") + "' ";
  expect_picture(flux, "flux_pictures", "plain", "--guidance 2.5");
  expect_picture(flux, "flux_pictures", "cfg", "--guidance 2.5 --cfg 3" + negative);
  expect_picture(sd3, "sd3", "plain", "--sampler euler --cfg 4" + negative);
  expect_picture(sd3, "sd3", "skip",
                 "--sampler euler --cfg 4 --skip-layer-guidance 2.5 --skip-layers 0,5 --skip-layer-start 0.1 "
                 "--skip-layer-stop 0.6" +
                     negative);
}

// The golden takes the mean of the VAE's posterior, as Wick does.
TEST_F(FlowModels, AGivenPictureBecomesThatOfDiffusers) {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "sd3/pictures.in.safetensors");
  const fs::path golden = kGolden / "sd3/from_picture.safetensors";
  const Tensor picture = to_channels_last(SafetensorsFile::open(golden).load("picture"));
  std::vector<uint8_t> bytes;
  for (const float value : picture.to_vector()) bytes.push_back(uint8_t(std::lround(255 * value)));
  write_image(folder / "init.png", {.width = int(picture.dim(2)), .height = int(picture.dim(1)), .rgb = bytes});
  const auto& told = in.metadata();
  for (const char* strength : {"0.4", "0.75"}) {
    run_well("generate --overwrite --device cpu --noise '" + in.path().string() + "' --init '" +
             (folder / "init.png").string() + "' --strength " + strength + " --prompt '" + told.at("prompt") +
             "' --negative '" + told.at("negative_prompt") + "' --steps " + told.at("num_inference_steps") +
             " --t5-tokens " + told.at("max_sequence_length") + " --sampler euler --cfg 4" + sd3 + out("x.png"));
    EXPECT_LE(distance_from(golden, std::string(strength) + ".decoded", read_image(folder / "x.png")), 0.51f)
        << strength;
  }
}

TEST_F(FlowModels, FlagsOfOtherFamiliesAreRefused) {
  expect_wrong(2, draw(sd3) + "--guidance 3", {"--guidance", "is not told its guidance", "--cfg"});
  expect_wrong(2, draw(sdxl) + "--guidance 3", {"--guidance", "is not told its guidance"});
  expect_wrong(2, draw(flux) + "--negative y", {"--negative", "--cfg"});
  expect_wrong(2, draw(sdxl) + "--shift 2", {"--shift", "no rectified flow"});
  expect_wrong(2, draw(flux) + "--sampler dpmpp-2m-karras", {"--sampler dpmpp-2m-karras", "euler or dpmpp-2m"});
  expect_wrong(2, draw(flux) + "--sampler ddim", {"--sampler ddim", "euler or dpmpp-2m"});
  expect_wrong(2, draw(sd3) + "--sampler ddim", {"--sampler ddim", "euler or dpmpp-2m"});
  expect_wrong(2, draw(sdxl) + "--t5-tokens 9", {"--t5-tokens", "has no T5"});
  expect_wrong(2, draw(sdxl) + "--t5-mask", {"--t5-mask", "has no T5"});
  for (const std::string& which : {flux, sd3})
    expect_wrong(2, draw(which) + "--t5-mask --prompt-syntax comfyui", {"--t5-mask", "--prompt-syntax comfyui"});
  expect_wrong(2, "train --prompt-syntax comfyui", {"--prompt-syntax: no such flag"});
  expect_wrong(2, draw(flux) + "--cfg 3 --guidance-rescale 0.5", {"--guidance-rescale", "SDXL"});
  expect_wrong(2, draw(flux) + "--skip-layer-guidance 2", {"--skip-layer-guidance", "no layers to skip"});
  expect_wrong(2, draw(flux) + "--width 36", {"--width", "36", "multiple of 8"});
  expect_wrong(2, draw(sd3) + "--height 36", {"--height", "36", "multiple of 8"});
  expect_wrong(2, draw(sd3) + "--height 104", {"--height", "104", "up to 96 pixels"});
  for (const std::string flag : {"--skip-layers 1", "--skip-layer-start 0", "--skip-layer-stop 1"})
    expect_wrong(2, draw(sd3) + flag, {flag.substr(0, flag.find(' ')), "expected a --skip-layer-guidance"});
  for (const char* layers : {"-1", "0,a", "0.5"})
    expect_wrong(2, draw(sd3) + "--skip-layer-guidance 2 --skip-layers " + layers, {"--skip-layers", "an integer"});
  for (const auto& [which, flag, why] : {std::tuple{sdxl, "--timesteps uniform", "no rectified flow"},
                                         {sdxl, "--timestep-shift 2", "no rectified flow"},
                                         {sdxl, "--timestep-mean 1", "no rectified flow"},
                                         {sdxl, "--timestep-std 2", "no rectified flow"},
                                         {sdxl, "--train-guidance 2", "not told its guidance"},
                                         {sd3, "--train-guidance 2", "not told its guidance"},
                                         {sd3, "--timestep-mean 1 --timesteps mode", "logit-normal"},
                                         {flux, "--timestep-std 2 --timesteps uniform", "logit-normal"},
                                         {sd3, "--resolution 104", "at most 96"},
                                         {sdxl, "--t5-tokens 9", "has no T5"},
                                         {sdxl, "--t5-mask", "has no T5"}})
    for (const std::string& command :
         {std::string("plan"), "train --steps 1 --dataset '" + (test::source_dir() / "data/tiny-style").string() +
                                   "' --output '" + (folder / "out").string() + "'"})
      expect_wrong(2, command + which + flag, {std::string(flag).substr(0, std::string(flag).find(' ')), why});
}

TEST_F(FlowModels, PartsThatLackOrDoNotFitAreNamed) {
  const std::string native = (flux_.path() / "transformer/diffusion_pytorch_model.safetensors").string();
  expect_wrong(1, draw(" --transformer '" + native + "'"), {native, "has no VAE; pass it with --vae FILE"});
  expect_wrong(1, "plan --transformer '" + native + "'", {native, "--vae FILE"});
  const std::string t5 = (kGolden / "t5/three/text_encoder_3").string();
  expect_wrong(1, draw(flux) + "--t5 '" + t5 + "'", {"--t5 " + t5, "T5's states are 16 wide", "wants 24"});
  expect_wrong(1, draw(sd3) + "--t5 '" + t5 + "'", {"--t5 " + t5, "T5's states are 16 wide", "wants 24"});
  for (const auto& [part, flag] : {std::pair{"text_encoder", "--clip-l FILE"},
                                   {"text_encoder_2", "T5 encoder with --t5 FILE"},
                                   {"transformer", "--transformer FILE"},
                                   {"vae", "--vae FILE"},
                                   {"scheduler", "copy the model again"}}) {
    fs::rename(flux_.path() / part, folder / part);
    expect_wrong(1, draw(flux), {(flux_.path() / part).string(), "no such folder", flag});
    fs::rename(folder / part, flux_.path() / part);
  }
  const std::string other = (sd3_.path() / "transformer").string();
  expect_wrong(1, draw(flux) + "--transformer '" + other + "'", {other, "is SD3's transformer", "of the family FLUX"});
}

// They would cut texts into words that the encoder does not have, or takes for others.
TEST_F(FlowModels, TokenizersOfOtherModelsAreRefused) {
  for (const auto& [flag, path, words] :
       {std::tuple{"--t5-tokenizer", kGolden / "t5_tokenizer/tokenizer.json", "knows 768"},
        {"--clip-tokenizer", kGolden / "sdxl/tokenizer", "has 814 tokens, and the text encoder knows 718"}})
    for (const char* name : {" --model tiny-flux ", " --model tiny-sd3 "})
      expect_failure(draw(name) + flag + " '" + path.string() + "'", {flag, path.string(), words, "another model"});
  EXPECT_NE(run_well("inspect --t5-tokenizer '" + (kGolden / "t5_tokenizer/tokenizer.json").string() + "'")
                .out.find("a tokenizer of T5, "),
            std::string::npos);
  EXPECT_NE(run_well("inspect --clip-tokenizer '" + (kGolden / "sdxl/tokenizer").string() + "'")
                .out.find("a tokenizer of CLIP, 814 tokens"),
            std::string::npos);
}

struct Change {
  std::string file, key, value;
  Words words;
};

void change(const fs::path& model, const Change& c) {
  nlohmann::json config = read_json(model / c.file);
  config[c.key] = nlohmann::json::parse(c.value);
  write_plain(model / c.file, config.dump());
}

TEST_F(FlowModels, ConfigsThatSayOtherwiseAreRefused) {
  const std::string transformer = "transformer/config.json";
  const std::vector<Change> both = {
      {transformer,
       "_class_name",
       R"("ChromaTransformer2DModel")",
       {"ChromaTransformer2DModel", "Wick supports FLUX.1"}},
      {"vae/config.json", "_class_name", R"("AutoencoderTiny")", {"AutoencoderTiny", "AutoencoderKL"}}};
  for (const bool is_flux : {true, false}) {
    std::vector<Change> rows = both;
    if (is_flux)
      rows.push_back({transformer, "num_layers", "7", {"num_layers is 7", "transformer_blocks.", "double_blocks."}});
    else
      rows.push_back({transformer, "qk_norm", "null", {"qk_norm is null", "ln_q.weight"}});
    for (const Change& row : rows) {
      const test::FlowFolder changed(is_flux ? "flux_pictures" : "sd3");
      change(changed.path(), row);
      expect_wrong(1, draw(model(changed)), row.words);
      expect_wrong(1, "plan --device cpu" + model(changed), row.words);
    }
  }
}

TEST_F(FlowModels, FluxThatReadsPicturesIsRefusedByName) {
  const auto file_of = [&](int64_t channels) {
    save_safetensors(folder / "x.safetensors", {{"img_in.weight", zeros({8, channels})},
                                                {"double_blocks.0.img_attn.qkv.weight", zeros({24, 8})}});
    return "'" + (folder / "x.safetensors").string() + "'";
  };
  for (const auto& [channels, name] : {std::pair{384, "FLUX.1 Fill"}, {128, "FLUX.1 Canny or Depth"}}) {
    const std::string file = file_of(channels);
    for (const std::string& command : {draw(" --model " + file), draw(" --transformer " + file),
                                       draw(flux + "--transformer " + file), "plan --transformer " + file})
      expect_wrong(1, command, {"x.safetensors", name});
    EXPECT_NE(run_well("inspect " + file).out.find(name), std::string::npos);
  }
  fs::remove_all(flux_.path() / "transformer");
  write_plain(flux_.path() / "model_index.json", R"({"_class_name": "FluxPriorReduxPipeline"})");
  expect_wrong(1, draw(flux), {flux_.path().string(), "FluxPriorReduxPipeline", "Wick supports FLUX.1"});
}

TEST_F(FlowModels, FoldersWithoutTheirWeightsSayWhatTheyHold) {
  const fs::path weights = flux_.path() / "text_encoder_2/model.safetensors";
  fs::rename(weights, folder / "model.safetensors");
  expect_failure(draw(flux), {"text_encoder_2", "should hold", "copy the model again"});
  fs::create_symlink(folder / "blob", weights);
  expect_failure(draw(flux), {"text_encoder_2", "model.safetensors is a link to a file that is not there"});
  fs::remove(weights);
  write_plain(flux_.path() / "text_encoder_2/pytorch_model.bin", "PK");
  expect_failure(draw(flux), {"text_encoder_2", "pytorch_model.bin is a PyTorch pickle", "convert it to safetensors"});
}

TEST_F(FlowModels, ComponentsAreThoseOfTheFamily) {
  const auto forward = [&](const std::string& which, const char* component, const fs::path& in) {
    return "forward" + which + "--component " + component + " --in '" + in.string() + "'" + out("y");
  };
  const fs::path in = kGolden / "flux_pictures/pictures.in.safetensors";
  expect_wrong(2, forward(flux, "text_encoder_3", in), {"--component", "text_encoder, text_encoder_2", "transformer"});
  expect_wrong(2, forward(flux, "unet", in), {"--component", "'unet'", "transformer"});
  expect_wrong(2, forward(sd3, "unet", in), {"--component", "'unet'", "text_encoder_3", "transformer"});
  expect_wrong(2, forward(sd3, "tokenizer_4", in), {"--component", "'tokenizer_4'", "did you mean tokenizer"});

  save_safetensors(folder / "in", {{"hidden_states", zeros({1, 4, 64})},
                                   {"encoder_hidden_states", zeros({1, 3, 24})},
                                   {"pooled_projections", zeros({1, 8})},
                                   {"timestep", zeros({1})},
                                   {"img_ids", zeros({4, 3})},
                                   {"txt_ids", zeros({3, 3})}});
  expect_wrong(1, forward(flux, "transformer", folder / "in"), {"has no tensor \"guidance\""});
}

TEST_F(FlowModels, NoiseThatIsNoneIsNamed) {
  const auto noise = [&](const Tensor& x, const Words& words) {
    const TemporaryDirectory beside;
    save_safetensors(beside / "n.safetensors", {{"noise", x}});
    Words all{"--noise", "\"noise\""};
    all.insert(all.end(), words.begin(), words.end());
    expect_wrong(1, draw(flux) + "--noise '" + (beside / "n.safetensors").string() + "'", all);
  };
  noise(zeros({1, 4, 8, 8}), {"[B, 16, h, w]", "[1, 4, 8, 8]"});
  noise(zeros({1, 16, 7, 8}), {"even sides", "h = 7"});
  noise(zeros({1, 16, 8, 8}, DType::i64), {"F32", "I64"});
  noise(full({1, 16, 8, 8}, NAN), {"finite", "nan"});
}

TEST_F(FlowModels, PicturesBeyondTheTableOfPositionsAreToldByFile) {
  // A picture of 3 : 1, whose bucket is longer than a square one of the same --resolution.
  const TemporaryDirectory data;
  write_image(data / "long.png", {.width = 192, .height = 64, .rgb = std::vector<uint8_t>(size_t{3} * 192 * 64)});
  write_plain(data / "long.txt", "x");
  expect_wrong(1,
               "train --steps 1 --device cpu --resolution 96 --dataset '" + data.path().string() + "' --output '" +
                   (folder / "out").string() + "'" + sd3,
               {"long.png", "at most 96 a side", "--resolution"});
}

TEST_F(FlowModels, TransformersOfNoFamilyAreNamed) {
  write_plain(flux_.path() / "transformer/config.json", R"({"_class_name": "ChromaTransformer2DModel"})");
  const Words words{"its transformer is of the class \"ChromaTransformer2DModel\"", "Wick supports FLUX.1"};
  expect_wrong(1, draw(flux), words);
  expect_wrong(1, "forward" + flux + "--component transformer --in x" + out("y"), words);
}

TEST_F(FlowModels, FilesOfOtherKindsAreNamed) {
  write_plain(folder / "x.ckpt", "PK\x03\x04 and so on, for a while");
  const std::string pickle = " '" + (folder / "x.ckpt").string() + "' ";
  for (const char* flag : {"--model", "--transformer", "--vae", "--t5", "--clip-l"})
    expect_wrong(1, draw((flag == std::string("--model") ? " " : flux) + flag + pickle),
                 {"x.ckpt", "pickle", "convert it to safetensors"});
  save_safetensors(folder / "x.sft", {{"encoder.conv_in.weight", zeros({1})}, {"encoder.conv_out.weight", zeros({1})}});
  expect_wrong(1, draw(" --model '" + (folder / "x.sft").string() + "'"), {"found a VAE alone; pass it with --vae"});
  // Neither is a language model.
  const auto gguf_of = [&](const std::string& name) {
    save_gguf(folder / "x.gguf", {}, {{name, DType::f32, {2, 8}, [] { return zeros({2, 8}); }}});
    return draw(" --model '" + (folder / "x.gguf").string() + "'");
  };
  expect_wrong(1, gguf_of("enc.blk.0.attn_q.weight"), {"found a T5 encoder alone; pass it with --t5"});
  expect_wrong(1, gguf_of("distilled_guidance_layer.x"), {"found the model Chroma"});
  const std::string lora = "--lora '" + (kGolden / "lora_unet.safetensors").string() + "'";
  for (const std::string& which : {flux, sd3})
    expect_wrong(1, draw(which) + lora, {"lora_unet.safetensors", "fit no layer", "it looks like a LoRA for SDXL"});
}

TEST_F(FlowModels, LorasThatAreNoneAreNamed) {
  const std::string lora = " --lora '" + (folder / "l").string() + "'", module = "double_blocks.0.img_attn.proj",
                    xlabs = "double_blocks.0.processor.proj_lora1";
  const auto expect_named = [&](const std::map<std::string, Tensor>& tensors, const Words& words) {
    save_safetensors(folder / "l", tensors);
    expect_wrong(1, draw(flux) + lora, words);
    fs::remove(folder / "l");
  };
  expect_named({{xlabs + ".down.weight", zeros({2, 7})}, {xlabs + ".up.weight", zeros({8, 2})}},
               {"proj_lora1.up.weight", "shape"});
  expect_named({{"double_blocks.0.img_attn.norm.key_norm.scale", zeros({8})},
                {module + ".lora_A.weight", zeros({2, 8})},
                {module + ".lora_B.bias", zeros({8})},
                {module + ".lora_B.weight", zeros({8, 2})}},
               {"key_norm.scale", "no tensor of a LoRA"});
  expect_named({{"img_in.weight", zeros({8, 64})}, {"double_blocks.0.img_attn.qkv.weight", zeros({24, 8})}},
               {"expected a LoRA, found FLUX's transformer"});
}

}  // namespace
}  // namespace wick
