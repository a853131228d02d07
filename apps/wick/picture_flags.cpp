#include "picture_flags.h"

#include <limits>

#include "validators.h"

namespace wick::cli {

std::vector<std::string> PictureFlags::add_to(CLI::App& command) {
  std::vector<std::string> names;
  const auto picture = [&](CLI::Option* option) {
    names.push_back(option->get_name());
    return option->group("Pictures");
  };
  const auto number = [&](const char* name, auto& value, const char* help, double least, double most) {
    picture(command.add_option(name, value, help))->type_name("NUMBER")->transform(cli::number_in(least, most));
  };
  const auto integer = [&](const char* name, int64_t& value, const char* help, const CLI::Validator& check) {
    picture(command.add_option(name, value, help))->type_name("INT")->transform(check);
  };
  picture(command.add_option("--out", out, "PNG file to write"))->type_name("FILE")->check(cli::png_file());
  picture(command.add_flag("--overwrite", overwrite, "Write over a file that is there"));
  picture(command.add_flag("--compare", compare, "Draw everything without the LoRAs too, above"));
  picture(command.add_option("--negative", negative, "What not to draw"))->type_name("TEXT");
  integer("--steps", steps, "Denoising steps [as listed below]", cli::positive_integer());
  number("--cfg", cfg, "Scale of classifier-free guidance, away from --negative; 1 is without it [as listed below]", 1,
         100);
  number("--guidance-rescale", cfg_rescale,
         "SDXL: share of a guided prediction that gets the deviation of the one without guidance, about 0.7 for models "
         "that predict v [0]",
         0, 1);
  number("--guidance", guidance, "Guidance that FLUX dev models are told [3.5]", 0, 100);
  picture(command.add_option("--sampler", sampler,
                             "How noise is taken away: by euler or dpmpp-2m, SDXL by ddim or dpmpp-2m-karras too "
                             "[as listed below]"))
      ->type_name("NAME")
      ->check(cli::one_of({"euler", "ddim", "dpmpp-2m", "dpmpp-2m-karras"}));
  number("--shift", shift, "Moves the times of FLUX and SD3 towards noise [the scheduler's]", 1e-3, 1000);
  number("--skip-layer-guidance", skip.scale,
         "SD3: leads away from what the model predicts without --skip-layers [0: off]", 0, 100);
  picture(command.add_option("--skip-layers", skip.layers, "Layers that it leaves out [7,8,9]"))
      ->type_name("INT,...")
      ->delimiter(',')
      ->transform(cli::integer_in(0, std::numeric_limits<int32_t>::max()));
  number("--skip-layer-start", skip.start, "Share of the steps after which it begins [0.01]", 0, 1);
  number("--skip-layer-stop", skip.stop, "Share of the steps before which it ends [0.2]", 0, 1);
  picture(command.add_option_function<std::string>(
              "--prompt-syntax",
              [this](const std::string& name) {
                reading.syntax = name == "comfyui" ? PromptSyntax::comfyui : PromptSyntax::plain;
              },
              "How prompts are read: plain, cut where CLIP or T5 ends; or as by ComfyUI, where (word:1.3) has a weight "
              "and CLIP reads chunks of 75 tokens [plain]"))
      ->type_name("NAME")
      ->check(cli::one_of({"plain", "comfyui"}));
  integer("--t5-tokens", reading.t5.tokens,
          "Tokens of a prompt that T5 reads: longer ones are cut, shorter ones padded [as listed below]",
          cli::integer_in(1, 4096));
  picture(command.add_flag("--t5-mask", reading.t5.mask, "Hide the padding of T5's tokens from all others"));
  picture(command.add_option("--noise", noise,
                             "Safetensors file whose `noise` [B, C, h, w] is where pictures begin, one after the "
                             "other, in place of seeds"))
      ->type_name("FILE");
  integer("--width", width, "In pixels [as listed below]", cli::positive_integer());
  integer("--height", height, "Likewise [as listed below]", cli::positive_integer());
  integer("--batch-size", batch_size, "Pictures that are drawn at a time [1]", cli::integer_in(1, 1024));
  integer(
      "--vae-tile", tile,
      "Pixels: larger pictures are decoded in squares of this side, one by one, which takes less memory [where they "
      "would not fit otherwise]",
      cli::integer_in(64, 16384));
  return names;
}

}  // namespace wick::cli
