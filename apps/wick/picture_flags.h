// The flags of `generate` that say how pictures are drawn.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "picture_settings.h"
#include "wick/pipelines/text_to_image.h"

namespace wick::cli {

struct PictureFlags {
  std::string out, from, sampler, prediction;
  std::optional<std::string> negative;
  // None, and 0: what the model was made for.
  int64_t width = 0, height = 0, steps = 0;
  int64_t batch_size = 1, tile = 0;
  std::optional<float> cfg, guidance;
  float cfg_rescale = 0;
  std::optional<double> shift;
  SkipLayerGuidance skip;
  std::string noise, init;
  double strength = 0.6;
  PredictionSetting prediction_setting() const;

  ReadingOptions reading;
  bool compare = false, overwrite = false;
  std::vector<std::string> columns;  // of the grid: sets of LoRAs

  // Adds them behind --model and --prompt; returns their names. The settings and the flags outlive the command.
  std::vector<std::string> add_to(CLI::App& command, PictureSettings& settings);

 private:
  class Adder;
  void add_prompt(Adder& add);
  void add_picture(Adder& add);
  void add_steps(Adder& add);
  void add_guidance(Adder& add);
  void add_output(Adder& add);
  CLI::Option* add_from(CLI::App& command);
};

}  // namespace wick::cli
