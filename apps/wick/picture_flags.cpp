#include "picture_flags.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "flag_table.h"
#include "validators.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/train/config.h"

namespace wick::cli {

namespace {

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kSamplers) names.emplace_back(name);
  return names;
}

}  // namespace

// Adds options and remembers their names.
class PictureFlags::Adder {
 public:
  Adder(CLI::App& command, PictureSettings& settings) : command_(command), settings_(settings) {}

  CLI::App& command() { return command_; }
  const std::vector<std::string>& names() const { return names_; }

  CLI::Option* picture(CLI::Option* option) {
    names_.push_back(option->get_name());
    return option;
  }
  // One that a picture carries.
  CLI::Option* carried(CLI::Option* option, const auto& value, Carried how = {}) {
    settings_.carry(option, value, std::move(how));
    return picture(option);
  }
  void carried_as_given(CLI::Option* option, Carried how) { settings_.carry_as_given(picture(option), std::move(how)); }
  void number(const char* name, auto& value, const char* help, double least, double most,
              const std::function<bool()>& is_used = {}) {
    carried(command_.add_option(name, value, help), value, {.is_used = is_used})
        ->type_name("NUMBER")
        ->transform(number_in(least, most));
  }
  void integer(const char* name, int64_t& value, const char* help, const CLI::Validator& check, Carried how = {}) {
    carried(command_.add_option(name, value, help), value, std::move(how))->type_name("INT")->transform(check);
  }

 private:
  CLI::App& command_;
  PictureSettings& settings_;
  std::vector<std::string> names_;
};

std::vector<std::string> PictureFlags::add_to(CLI::App& command, PictureSettings& settings) {
  Adder add(command, settings);
  add.picture(add_from(command));  // the first: where none of these is for the model, it is the one to be named
  add_prompt(add);
  begin_group(command, "Pictures");
  add_picture(add);
  begin_group(command, "Steps of pictures");
  add_steps(add);
  add_guidance(add);
  begin_group(command, "Output of pictures");
  add_output(add);
  return add.names();
}

void PictureFlags::add_prompt(Adder& add) {
  const auto has_t5 = [this] { return reading.t5.tokens > 0; };
  CLI::App& command = add.command();
  add.carried(command.add_option("--negative", negative, "What not to draw"), negative)->type_name("TEXT");
  CLI::Option* syntax = command.add_option_function<std::string>(
      "--prompt-syntax",
      [this](const std::string& name) {
        reading.syntax = name == "comfyui" ? PromptSyntax::comfyui : PromptSyntax::plain;
      },
      "How prompts of pictures are read: plain, cut where CLIP or T5 ends; or as by ComfyUI, where (word:1.3) has a "
      "weight and CLIP reads chunks of 75 tokens [plain]");
  set_choices(syntax, {"plain", "comfyui"});
  add.carried_as_given(syntax, {.otherwise = "plain"});
  add.integer("--t5-tokens", reading.t5.tokens,
              "Tokens of a prompt that T5 reads: longer ones are cut, shorter ones padded [as listed below]",
              integer_in(1, 4096), {.is_used = has_t5});
  add.carried(command.add_flag("--t5-mask", reading.t5.mask, "Hide the padding of T5's tokens from all others"),
              reading.t5.mask, {.is_used = has_t5});
}

void PictureFlags::add_picture(Adder& add) {
  CLI::App& command = add.command();
  // Noise has a size of its own.
  add.integer("--width", width, "In pixels [as listed below]", positive_integer(), {.unless = {"--noise"}});
  add.integer("--height", height, "In pixels [as listed below]", positive_integer(), {.unless = {"--noise"}});
  add.carried(command.add_option("--init", init,
                                 "Picture to draw from, in place of noise alone; its middle is taken where --width and "
                                 "--height are of another form"),
              init)
      ->type_name("FILE");
  add.number("--strength", strength,
             "Share of the steps that are taken from --init on: little changes near 0, and little is left near 1 [0.6]",
             1e-3, 1, [this] { return !init.empty(); });
  add.carried(command.add_option("--noise", noise,
                                 "Safetensors file whose `noise` [B, C, h, w] is where pictures begin, one after the "
                                 "other, in place of seeds; `noise.0`, `noise.1`, ... are what samplers draw after it"),
              noise, {.unless = {"--seed"}})
      ->type_name("FILE");
  add.integer("--batch-size", batch_size, "Pictures that are drawn at a time [1]", integer_in(1, 1024));
  add.integer(
      "--vae-tile", tile,
      "Pixels: larger pictures are decoded in squares of this side, one by one, which takes less memory [where they "
      "would not fit otherwise]",
      integer_in(64, 16384), {.is_used = [this] { return tile != 0; }});
}

void PictureFlags::add_steps(Adder& add) {
  CLI::App& command = add.command();
  add.integer("--steps", steps, "Denoising steps [as listed below]", positive_integer());
  CLI::Option* samplers = command.add_option(
      "--sampler", sampler,
      "How noise is taken away: euler and dpmpp-2m are for all models, the others for SDXL; dpmpp-sde has Karras' "
      "sigmas and two evaluations a step, lcm takes 4 steps at --cfg 1 unless told otherwise [as listed below]");
  set_choices(add.carried(samplers, sampler), sampler_names());
  CLI::Option* predictions = command.add_option("--prediction", prediction,
                                                "SDXL: the model predicts the noise (epsilon), v, or v with a last "
                                                "timestep that has no signal [as its files say]");
  const std::vector<std::string_view> names = split_names(names_of(PredictionSetting{}));
  set_choices(add.carried(predictions, prediction), {names.begin() + 1, names.end()});  // not auto, the default
  add.number("--shift", shift, "Moves the times of FLUX and SD3 towards noise [the scheduler's]", 1e-3, 1000);
}

PredictionSetting PictureFlags::prediction_setting() const {
  if (prediction.empty()) return PredictionSetting::automatic;
  const std::vector<std::string_view> names = split_names(names_of(PredictionSetting{}));
  return PredictionSetting(std::ranges::find(names, prediction) - names.begin());
}

void PictureFlags::add_guidance(Adder& add) {
  const auto skips = [this] { return skip.scale != 0; };
  add.number("--cfg", cfg, "Scale of classifier-free guidance, away from --negative; 1 is without it [as listed below]",
             1, 100);
  add.number("--guidance-rescale", cfg_rescale,
             "SDXL: share of a guided prediction that gets the deviation of the one without guidance, about 0.7 for "
             "models that predict v [0]",
             0, 1, [this] { return cfg_rescale != 0; });
  add.number("--guidance", guidance, "Guidance that FLUX dev models are told [3.5]", 0, 100);
  add.number("--skip-layer-guidance", skip.scale,
             "SD3: scale of the skip-layer guidance of --skip-layers. It acts at --cfg 1 too. 0: none [0]", 0, 100,
             skips);
  add.carried(add.command().add_option("--skip-layers", skip.layers, "Layers that it leaves out [7,8,9]"), skip.layers,
              {.is_used = skips})
      ->type_name("INT,...")
      ->delimiter(',')
      ->transform(integer_in(0, std::numeric_limits<int32_t>::max()));
  add.number("--skip-layer-start", skip.start, "Share of the steps after which it begins [0.01]", 0, 1, skips);
  add.number("--skip-layer-stop", skip.stop, "Share of the steps before which it ends [0.2]", 0, 1, skips);
}

void PictureFlags::add_output(Adder& add) {
  CLI::App& command = add.command();
  add.picture(command.add_option("--out", out,
                                 "Picture to write: .png, .jpg or .webp; or a folder, for a numbered PNG file of each"))
      ->type_name("PATH")
      ->check(image_file_or_folder());
  add.picture(command.add_flag("--overwrite", overwrite, "Write over a file that is there"));
  add.carried(command.add_flag("--compare", compare, "Draw everything without the LoRAs too, above"), compare);
  add.carried(command.add_option("--column", columns,
                                 "LoRAs of a column of the grid, beside those of --lora: FILE[:STRENGTH], several with "
                                 "a + between them, or none; may be repeated, and the model is loaded once"),
              columns)
      ->type_name("SET")
      ->allow_extra_args(false)
      ->check(not_empty());
}

CLI::Option* PictureFlags::add_from(CLI::App& command) {
  const auto remember = [this, &command](const std::string& picture) {
    from = picture;
    for (const char* flag : {"--model", "--prompt"}) command.get_option(flag)->required(false);
  };
  return command
      .add_option_function<std::string>(
          "--from", remember,
          "Repeat this picture: its settings stand for all flags that are not given; of pictures of A1111's web UI and "
          "Forge all but the model")
      ->type_name("FILE")
      ->check(not_empty());
}

}  // namespace wick::cli
