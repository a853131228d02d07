// The settings that pictures carry, and --from, which repeats them.
#include "cli/program.h"
#include "flow_folder.h"
#include "wick/core/tensor.h"
#include "wick/io/image.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/pipelines/model_defaults.h"

namespace wick {
namespace {

using Words = std::vector<std::string>;

class PictureSettings : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return "'" + (folder / name).string() + "'"; }
  Outcome draw(const std::string& arguments, const std::string& out) const {
    const Outcome outcome = run_wick("generate --device cpu " + arguments + " --out " + path(out));
    EXPECT_EQ(outcome.code, 0) << arguments << '\n' << outcome.err;
    return outcome;
  }
  // Draws a picture, and repeats it from that alone.
  nlohmann::json expect_repeated(const std::string& arguments, const std::string& ending = ".png") const {
    SCOPED_TRACE(arguments);
    draw("--overwrite " + arguments, "first" + ending);
    const Outcome again = draw("--overwrite --from " + path("first" + ending), "second" + ending);
    EXPECT_EQ(again.err.find("first"), std::string::npos) << again.err;  // nothing is said of the picture
    EXPECT_EQ(read_plain(folder / ("first" + ending)), read_plain(folder / ("second" + ending)));
    return settings("first" + ending);
  }
  nlohmann::json settings(const std::string& name) const {
    return parse_json(read_image_texts(folder / name).at("wick"), name);
  }
  std::string parameters(const std::string& name) const { return read_image_texts(folder / name).at("parameters"); }
  std::string carrying(const ImageTexts& texts) const {
    write_image(folder / "in.png", {2, 2, std::vector<uint8_t>(12)}, texts);
    return "generate --device cpu --overwrite --from " + path("in.png") + " --out " + path("out.png") + " ";
  }
  std::string of_web_ui(const std::string& text) const { return carrying({{"parameters", text}}) + model; }
  std::string with(nlohmann::json settings) const {
    settings["version"] = settings.value("version", "0.1.0");
    return carrying({{"wick", settings.dump()}});
  }
  void expect_wrong(int code, const std::string& command, const Words& words) const {
    SCOPED_TRACE(command);
    const Outcome outcome = run_wick(command);
    expect_one_line(outcome, words);
    EXPECT_EQ(outcome.code, code);
    EXPECT_EQ(outcome.out, "");
    EXPECT_FALSE(std::filesystem::exists(folder / "out.png"));
  }

  const TemporaryDirectory folder;
  const std::string model = "--model '" + kModel + "' ", small = model + "--width 64 --height 48 --steps 2 ";
  const std::string lora = "--lora '" + (kGolden / "lora_unet.safetensors").string() + ":0.7' ";
};

// Of several pictures each carries what repeats it alone. Files keep their names, and none takes that of another.
TEST_F(PictureSettings, PicturesOfAFolderAreRepeatedOneByOne) {
  const std::string all = small + "--prompt 'a red fox' --prompt 'a blue hat' --seed 3 --seed 4 --batch-size 3 ";
  EXPECT_NE(draw(all, "pictures/").out.find("pictures/00004.png"), std::string::npos);
  const Words prompts = {"a red fox", "a blue hat", "a red fox", "a blue hat"};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string name = "pictures/0000" + std::to_string(i + 1) + ".png";
    EXPECT_EQ(settings(name)["prompt"], nlohmann::json::array({prompts[i]}));
    EXPECT_EQ(settings(name)["seed"], nlohmann::json::array({3 + i / 2}));
    draw("--overwrite --batch-size 1 --from " + path(name), "again.png");
    const Image one = read_image(folder / name), again = read_image(folder / "again.png");
    for (size_t k = 0; k < one.rgb.size(); ++k) ASSERT_NEAR(one.rgb[k], again.rgb[k], 1) << name;
  }
  const std::string first = read_plain(folder / "pictures/00001.png");
  std::filesystem::remove(folder / "pictures/00002.png");
  draw("--from " + path("pictures/00003.png") + " --seed 9", "pictures");  // a folder that is there
  EXPECT_EQ(settings("pictures/00005.png")["seed"], nlohmann::json::array({9}));
  EXPECT_EQ(read_plain(folder / "pictures/00001.png"), first);
  EXPECT_FALSE(std::filesystem::exists(folder / "pictures/00002.png"));

  const std::string into = " --out " + path("pictures/"), command = "generate --device cpu " + small + "--prompt x";
  expect_wrong(2, command + into + " --overwrite", {"--overwrite", "pictures/"});
  expect_wrong(2, command + into + " --compare " + lora, {"--compare", "pictures/"});
  expect_wrong(2, command + " --out " + path("elsewhere"), {"--out", ".png", "elsewhere", "folder"});
  write_plain(folder / "file", "x");
  expect_wrong(1, command + " --out " + path("file/"), {"--out", "file/", "cannot create the directory"});
}

TEST_F(PictureSettings, EveryPictureIsRepeatedToTheByte) {
  const std::string text = "--prompt 'a red fox' ";
  for (const char* ending : {".png", ".jpg", ".webp"}) expect_repeated(small + text + "--seed 3", ending);
  expect_repeated(small + lora + text + "--negative 'blue' --cfg 4.3 --guidance-rescale 0.7 --bf16");
  const std::string unet =
      "--lora '" + (kGolden / "lora_unet.safetensors").string() + ":0.7,unet=-0.4,text_encoder=0' ";
  EXPECT_NE(expect_repeated(small + unet + text).at("lora").dump().find(":0.7,unet=-0.4,text_encoder=0"),
            std::string::npos);
  expect_repeated(small + "--prompt '' --negative '' --sampler dpmpp-2m-karras");
  expect_repeated(small + "--prompt \"$(printf 'caf\\303\\251, \\360\\237\\246\\212\\n(a:1) \"\\\\')\"");
  expect_repeated(small + text + "--cfg 1");
  expect_repeated(small + text + "--quantize int8");
  expect_repeated(small + text + "--fp8-compute");
  expect_repeated(small + lora + text + "--prompt 'b, \"c\"' --seed 1 --seed 2 --compare");
  const auto tiled = expect_repeated(
      model + text + "--width 128 --height 128 --steps 2 --seed 1 --seed 2 --batch-size 2 --vae-tile 64");
  EXPECT_EQ(tiled.at("batch-size"), 2);
  EXPECT_EQ(tiled.at("vae-tile"), 64);
  expect_repeated(model + text);  // all else is left to the model
}

// Also from a picture, and with draws from a file.
TEST_F(PictureSettings, SamplersThatDrawAreRepeated) {
  const std::string text = "--prompt 'a red fox' ", draws = (kGolden / "samplers/stochastic.in.safetensors").string();
  draw(small + text, "init.png");
  const std::string init = "--init " + path("init.png") + " --strength 0.6 ";
  for (const std::string sampler : {"euler-ancestral", "dpmpp-sde", "lcm", "unipc"}) {
    const std::string by = text + "--sampler " + sampler + " ";
    EXPECT_EQ(expect_repeated(small + by + "--seed 5").at("sampler"), sampler);
    const auto begun = expect_repeated(model + "--steps 5 --seed 5 " + init + by);
    EXPECT_EQ(begun.at("init"), (folder / "init.png").string());
    EXPECT_EQ(begun.at("strength"), 0.6);
    const auto given = expect_repeated(model + "--steps 4 --noise '" + draws + "' " + by);
    EXPECT_EQ(given.at("noise"), draws);
    EXPECT_FALSE(given.contains("seed"));
    EXPECT_FALSE(given.contains("init"));
    EXPECT_FALSE(given.contains("strength"));
    expect_repeated(model + "--steps 4 --width 96 --height 64 --noise '" + draws + "' " + init + by);
  }
}

TEST_F(PictureSettings, FlowModelsAndNoiseAreRepeated) {
  for (const char* name : {"flux_pictures", "sd3"}) {
    const test::FlowFolder flow(name);
    const std::string common = " --model '" + flow.path().string() + "' --prompt x --steps 2 --t5-tokens 8 ";
    const bool is_flux = name == std::string("flux_pictures");
    const auto carried = expect_repeated(
        common + (is_flux ? "--guidance 2.5 --shift 2" : "--skip-layer-guidance 2 --skip-layers 0,5 --t5-mask"));
    EXPECT_EQ(carried.contains("guidance"), is_flux);
    EXPECT_EQ(carried.contains("skip-layers"), !is_flux);
    const std::string noise = (kGolden / name / "pictures.in.safetensors").string();
    const auto begun = expect_repeated(common + "--noise '" + noise + "'");
    EXPECT_EQ(begun.at("noise"), noise);
    EXPECT_FALSE(begun.contains("seed"));
    // The seed's noise takes the place of the file's.
    EXPECT_FALSE((draw("--from " + path("first.png") + " --seed 4", std::string(name) + ".png"),
                  settings(std::string(name) + ".png"))
                     .contains("noise"));
  }
}

TEST_F(PictureSettings, ValuesInUseAreCarried) {
  draw(model + "--prompt 'a cat'", "x.png");
  const nlohmann::json carried = settings("x.png");
  EXPECT_EQ(carried.at("model"), kModel);
  EXPECT_EQ(carried.at("prompt"), nlohmann::json::array({"a cat"}));
  EXPECT_EQ(carried.at("seed"), nlohmann::json::array({0}));
  EXPECT_EQ(carried.at("sampler"), "euler");
  for (const char* number : {"steps", "cfg", "width", "height"}) EXPECT_TRUE(carried.at(number).is_number()) << number;
  for (const char* unused :
       {"guidance", "negative", "noise", "shift", "t5-tokens", "skip-layers", "lora", "out", "from"})
    EXPECT_FALSE(carried.contains(unused)) << unused;
}

TEST_F(PictureSettings, ParametersAreThoseOfTheWebUi) {
  draw(small + lora + "--prompt 'a cat' --negative 'blue' --cfg 4.5 --seed 7 --sampler dpmpp-2m-karras", "x.png");
  EXPECT_EQ(parameters("x.png"),
            "a cat <lora:lora_unet:0.7>\nNegative prompt: blue\nSteps: 2, Sampler: DPM++ 2M, Schedule type: Karras, "
            "CFG scale: 4.5, Seed: 7, Size: 64x48, Model: sdxl, Version: wick 0.1.0");
  draw(small + "--prompt x --lora " + (kGolden / "lora_unet.safetensors").string() + ":unet=0.5,text_encoder=0",
       "y.png");
  EXPECT_NE(parameters("y.png").find("x <lora:lora_unet:0:0.5>\n"), std::string::npos) << parameters("y.png");
  draw(small + "--prompt 'a' --prompt 'b, \"c\"' --seed 1 --seed 2", "grid.png");
  EXPECT_EQ(parameters("grid.png"),
            "a\nSteps: 2, Sampler: Euler, CFG scale: 5, Seed: 1, Size: 64x48, Model: sdxl, Script: X/Y/Z plot, "
            "X Type: Prompt S/R, X Values: \"a, \\\"b, \\\"\\\"c\\\"\\\"\\\"\", Y Type: Seed, Y Values: \"1, 2\", "
            "Version: wick 0.1.0");
}

TEST_F(PictureSettings, HashesOfLorasAreThoseThatTheyTell) {
  const SafetensorsFile file = SafetensorsFile::open(kGolden / "lora_unet.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
  const auto save = [&](const char* hash) {
    save_safetensors(folder / "style.safetensors", tensors, {{"sshs_model_hash", hash}});
  };
  save("0123456789abcdef0123");
  draw(small + "--prompt a --lora " + path("style.safetensors"), "x.png");
  EXPECT_NE(parameters("x.png").find("a <lora:style:1>\n"), std::string::npos);
  EXPECT_NE(parameters("x.png").find("Lora hashes: \"style: 0123456789ab\""), std::string::npos) << parameters("x.png");
  const std::string again = "--overwrite --from " + path("x.png"), told = "x.png: drawn with another LoRA than ";
  EXPECT_EQ(draw(again, "y.png").err, "");
  save("fedcba9876543210");
  EXPECT_NE(draw(again, "y.png").err.find(told), std::string::npos);
  save("");
  EXPECT_NE(draw(again, "y.png").err.find(told), std::string::npos);
}

TEST_F(PictureSettings, FlagsBesideThemWin) {
  draw(small + lora + "--prompt 'a cat' --negative 'blue' --seed 7 --bf16", "x.png");
  draw("--from " + path("x.png") + " --prompt 'a dog' --seed 1 --steps 3 --bf16=false", "y.png");
  const nlohmann::json first = settings("x.png"), second = settings("y.png");
  EXPECT_EQ(second.at("prompt"), nlohmann::json::array({"a dog"}));
  EXPECT_EQ(second.at("seed"), nlohmann::json::array({1}));
  EXPECT_EQ(second.at("steps"), 3);
  EXPECT_EQ(second.at("bf16"), false);
  for (const char* same : {"lora", "negative", "width", "height", "model", "cfg"})
    EXPECT_EQ(second.at(same), first.at(same));
  draw(model + lora + "--width 64 --height 48 --prompt 'a dog' --negative 'blue' --seed 1 --steps 3", "z.png");
  EXPECT_EQ(read_image(folder / "y.png").rgb, read_image(folder / "z.png").rgb);
  // One of two that exclude each other.
  draw("--from " + path("x.png") + " --fp16", "fp16.png");
  EXPECT_FALSE(settings("fp16.png").value("bf16", false));
}

TEST_F(PictureSettings, SettingsWithoutUseAreToldAndLeftOut) {
  draw(small + "--prompt x --negative 'blue' --guidance-rescale 0.5", "x.png");
  const Outcome outcome = draw("--from " + path("x.png") + " --cfg 1", "y.png");
  for (const char* word :
       {"its --negative is left out: expected a --cfg other than 1", "its --guidance-rescale is left out"})
    EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
  EXPECT_FALSE(settings("y.png").contains("negative"));
  expect_wrong(2, "generate --from " + path("x.png") + " --cfg 1 --negative red --out " + path("out.png"),
               {"--negative: expected a --cfg"});
}

// As the web UI 1.10 writes it.
TEST_F(PictureSettings, PicturesOfTheWebUiAreRepeated) {
  const std::string text =
      "a cat, <lora:foo:0.8>\nof two lines\nNegative prompt: blurred,\nugly\nSteps: 2, Sampler: DPM++ 2M, Schedule "
      "type: "
      "Automatic, CFG scale: 4.5, Seed: 12345, Size: 64x48, Model hash: 31e35c80fc, Model: sd_xl_base_1.0, Hires "
      "upscale: 2, Hires prompt: \"a, b: c\\nd\", Lora hashes: \"foo: 1234567890ab\", Version: v1.10.1";
  const Outcome outcome = run_wick(of_web_ui(text));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
  for (const char* told : {"in.png: another program drew it", "left out: <lora:foo:0.8> (pass its file with --lora), ",
                           "Hires upscale: 2, Hires prompt: a, b: c"})
    EXPECT_NE(outcome.err.find(told), std::string::npos) << outcome.err;
  for (const char* known : {"Model", "Seed", "Size", "hashes"}) EXPECT_EQ(outcome.err.find(known), std::string::npos);
  draw(small +
           "--prompt \"$(printf 'a cat, \\nof two lines')\" --negative \"$(printf 'blurred,\\nugly')\" --cfg 4.5 "
           "--seed 12345 "
           "--sampler dpmpp-2m-karras",
       "same.png");
  EXPECT_EQ(read_image(folder / "out.png").rgb, read_image(folder / "same.png").rgb);
}

// The message says "all else is repeated" only if Wick repeats all else.
TEST_F(PictureSettings, WhatTheWebUiInterpretsInAPromptIsTold) {
  const std::string end = "\nSteps: 1, Sampler: Euler, CFG scale: 4, Seed: 1, Size: 64x48";
  const auto told = [&](const std::string& prompt) {
    const Outcome outcome = run_wick(of_web_ui(prompt + end));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  EXPECT_NE(told("a cat, snow").find("; all else is repeated\n"), std::string::npos);
  for (const auto& [prompt, piece] :
       {std::pair{"a cat AND a dog", "AND"},
        {"a cat BREAK snow", "BREAK"},
        {"a [cat:dog:0.5]", "[cat:dog:0.5]"},
        {"a [cat]", "weights like [word]"},
        {"a (cat)", "weights like (word) or (word:1.3), unless with --prompt-syntax comfyui"},
        {"a \\(cat\\)", "weights like (word) or (word:1.3)"},
        {"a {cat|dog}", "{cat|dog}"},
        {"a __cat__", "__cat__"},
        {"a\nNegative prompt: b BREAK c", "BREAK"}}) {
    const std::string err = told(prompt);
    EXPECT_NE(err.find("left out: "), std::string::npos) << err;
    EXPECT_NE(err.find(piece), std::string::npos) << err;
    EXPECT_EQ(err.find("all else is repeated"), std::string::npos) << err;
  }
}

TEST_F(PictureSettings, WhatOtherProgramsInterpretInAPromptIsToldInOneLine) {
  const auto told = [&](const std::string& flags) {
    const Outcome outcome = draw("--overwrite " + small + flags, "x.png");
    EXPECT_LE(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  EXPECT_EQ(told("--prompt 'a (red) fox: one, and two'"), "");
  EXPECT_EQ(told("--prompt '<lora:name:0.8> (word:1.3) BREAK' --prompt 'a AND {a|b} __wild__'"),
            "wick: the prompt's \"<lora:name:0.8>\", \"(word:1.3)\", \"BREAK\", \"{a|b}\" and \"__wild__\" are read as "
            "plain words; --lora FILE loads a LoRA; --prompt-syntax comfyui reads weights\n");
  EXPECT_EQ(told("--prompt x --negative '(word:1.3)'"),
            "wick: the prompt's \"(word:1.3)\" is read as plain words; --prompt-syntax comfyui reads weights\n");
  EXPECT_EQ(told("--prompt '(word:1.3)' --prompt-syntax comfyui"), "");
  EXPECT_EQ(told("--prompt '(word:1.3) BREAK' --prompt-syntax comfyui"),
            "wick: the prompt's \"BREAK\" is read as plain words\n");
}

TEST_F(PictureSettings, NamesOfSamplersAreTranslated) {
  const std::string end = ", CFG scale: 4, Seed: 1, Size: 64x48";
  for (const auto& [theirs, ours] : {std::pair{"Euler", "euler"},
                                     {"Euler, Schedule type: Automatic", "euler"},
                                     {"Euler, Schedule type: Simple", "euler"},
                                     {"DDIM", "ddim"},
                                     {"DPM++ 2M Karras", "dpmpp-2m-karras"},
                                     {"DPM++ 2M", "dpmpp-2m"},
                                     {"DPM++ 2M, Schedule type: Uniform", "dpmpp-2m"},
                                     {"Euler a, Schedule type: Automatic", "euler-ancestral"},
                                     {"DPM++ SDE Karras", "dpmpp-sde"},
                                     {"DPM++ SDE, Schedule type: Automatic", "dpmpp-sde"},
                                     {"UniPC", "unipc"},
                                     {"LCM", "lcm"}}) {
    EXPECT_EQ(run_wick(of_web_ui("a\nSteps: 1, Sampler: " + std::string(theirs) + end)).code, 0);
    EXPECT_EQ(settings("out.png").at("sampler"), ours) << theirs;
  }
  for (const auto& [name, kind] : kSamplers) {  // there and back
    const std::string sampler(name);
    draw("--overwrite " + small + "--prompt a --sampler " + sampler, "ours.png");
    EXPECT_EQ(run_wick(of_web_ui(parameters("ours.png"))).code, 0) << sampler;
    EXPECT_EQ(settings("out.png").at("sampler"), sampler);
  }
  EXPECT_EQ(run_wick(of_web_ui("a\nSteps: 1, Sampler: DPM++ SDE, Schedule type: Uniform" + end)).code, 1);
  std::filesystem::remove(folder / "out.png");
  const std::string unknown = of_web_ui("a\nSteps: 1, Sampler: Heun, Schedule type: Beta" + end);
  expect_wrong(
      1, unknown,
      {"--from ", "in.png: its setting \"sampler\": expected euler", "'Heun Beta'", "give another by --sampler"});
  EXPECT_EQ(run_wick(unknown + " --sampler euler").code, 0);
}

TEST_F(PictureSettings, WrongPicturesAreOneLine) {
  const std::string web_ui = "a\nSteps: 1, Sampler: Euler, CFG scale: 4, Seed: 1, Size: 64x48";
  write_plain(folder / "x.png", "hello, this is text");
  expect_wrong(1, "generate --out " + path("out.png") + " --from " + path("x.png"),
               {"--from ", "x.png: expected a JPEG, PNG, WebP, GIF, BMP or TIFF image"});
  expect_wrong(1, "generate --out " + path("out.png") + " --from " + path("none.png"),
               {"--from ", "none.png: cannot open"});
  expect_wrong(1, carrying({}), {"--from ", "in.png: expected a picture that carries its settings", "found none"});
  expect_wrong(1, carrying({{"prompt", "{}"}, {"workflow", "{}"}}), {"in.png: ", "ComfyUI's workflow alone"});
  expect_wrong(1, carrying({{"parameters", "just a text"}}),
               {"in.png: expected `parameters` of A1111's web UI", "just a text"});
  expect_wrong(2, "generate --from '' --out " + path("out.png"), {"--from"});
  expect_wrong(2, carrying({{"parameters", web_ui}}), {"--model is required: ", "in.png does not say"});
  expect_wrong(2, "generate --from " + path("in.png") + " " + model, {"--out is required"});
  expect_wrong(2, "generate --from " + path("in.png") + " --model tiny-llm",
               {"--from: tiny-llm is a model of language"});
}

TEST_F(PictureSettings, DamagedSettingsAreOneLine) {
  const nlohmann::json good = {{"model", kModel}, {"prompt", {"x"}}, {"steps", 1}, {"width", 64}, {"height", 48}};
  EXPECT_EQ(run_wick(with(good)).code, 0);
  std::filesystem::remove(folder / "out.png");
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json settings = good;
    settings[key] = value;
    return with(settings);
  };
  expect_wrong(1, carrying({{"wick", "{\"model\": "}}), {"--from ", "in.png: its text `wick`: not valid JSON"});
  expect_wrong(1, carrying({{"wick", "[1]"}}), {"in.png: its text `wick`: expected an object"});
  expect_wrong(1, carrying({{"wick", "{}"}}), {"in.png: its text `wick`", "version", "missing"});
  expect_wrong(1, carrying({{"wick", R"({"version": 1})"}}), {"version: expected a string"});
  expect_wrong(1, changed("lora-hashes", 1), {"lora-hashes: expected an object"});
  expect_wrong(1, carrying({{"wick", R"({"version": "0.1.0", "steps": 1, "steps": 2})"}}), {"\"steps\" stands twice"});
  expect_wrong(1, changed("from-the-future", 1),
               {"its setting \"from-the-future\"", "wick 0.1.0", "the wick that drew it"});
  for (const auto& [key, value, words] : std::vector<std::tuple<const char*, nlohmann::json, Words>>{
           {"steps", "thirty", {"\"steps\": expected an integer, found \"thirty\""}},
           {"steps", 0, {"\"steps\": expected an integer of at least 1, found '0'", "by --steps"}},
           {"steps", {1, 2}, {"\"steps\": expected an integer, found a list"}},
           {"cfg", "5", {"\"cfg\": expected a finite number"}},
           {"cfg", 1e40, {"\"cfg\": expected a finite number"}},
           {"prompt", "x", {"\"prompt\": expected a list"}},
           {"prompt", {1}, {"\"prompt\": expected a string, found 1"}},
           {"prompt", {std::string("a\0b", 3)}, {"\"prompt\"", "NUL"}},
           {"prompt", nlohmann::json::array(), {"--prompt is required"}},
           {"seed", {-1}, {"\"seed\": expected an integer"}},
           {"seed", {{{"a", 1}}}, {"\"seed\": expected an integer, found an object"}},
           {"bf16", "yes", {"\"bf16\": expected true or false"}},
           {"sampler", "heun", {"\"sampler\": expected euler", "'heun'"}},
           {"model", nullptr, {"\"model\": expected a string, found null"}},
           {"out", "other.png", {"its setting \"out\""}}})
    expect_wrong(key == std::string("prompt") && value == nlohmann::json::array() ? 2 : 1, changed(key, value), words);
  nlohmann::json other = good;
  other["version"] = "9.9";
  const Outcome outcome = run_wick(with(other));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.err.find("in.png: drawn by wick 9.9"), std::string::npos) << outcome.err;
}

TEST_F(PictureSettings, WhatTheFormatCannotHoldIsToldBeforeDrawing) {
  const std::string prompt = "--prompt \"$(head -c 40000 /dev/zero | tr '\\0' x)\" ";
  expect_wrong(1, "generate " + small + prompt + "--out " + path("x.jpg"),
               {"--out ", "x.jpg: ", "settings take", "write a .png"});
  std::string seeds;
  for (int i = 0; i < 90; ++i) seeds += "--seed " + std::to_string(i) + " ";
  expect_wrong(1, "generate " + small + "--prompt x " + seeds + "--out " + path("x.webp"),
               {"x.webp: ", "16383 pixels a side"});
}

TEST_F(PictureSettings, InspectShowsThem) {
  draw(small + "--prompt 'a cat' --negative 'blue'", "x.webp");
  const Outcome outcome = run_wick("inspect " + path("x.webp"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* word :
       {"WebP, 64x48 pixels\n", "\nparameters\na cat\nNegative prompt: blue\nSteps: 2, ", "\nwick\n{\""})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
  write_image(folder / "y.png", {2, 2, std::vector<uint8_t>(12)}, {{"note", "\x1b[31mred"}});
  EXPECT_EQ(run_wick("inspect " + path("y.png")).out.find('\x1b'), std::string::npos);
}

// Neither the repeated picture nor the noise is written over.
TEST_F(PictureSettings, WhatIsReadIsNotWritten) {
  draw(small + "--prompt x", "x.png");
  expect_one_line(run_wick("generate --overwrite --from " + path("x.png") + " --out " + path("x.png")),
                  {"--out", "never writes over"});
}

}  // namespace
}  // namespace wick
