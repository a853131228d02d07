// The arguments of `wick generate`, whose model draws pictures or writes text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flags.h"
#include "picture_flags.h"
#include "text_flags.h"

namespace wick {

struct GenerateArguments {
  cli::ModelArguments model;
  std::vector<std::string> loras, prompts;
  std::vector<uint64_t> seeds;
  cli::RunOn run_on;
  cli::PictureFlags picture;
  cli::PictureSettings settings;  // that pictures carry
  cli::TextFlags text;
  bool json = false, until_full = false, chat = false;
  std::vector<std::string> picture_flags, text_flags;  // names of those that are for one kind of model alone
};

// Settles in `a` what is left to the model.
void generate_pictures(GenerateArguments& a, const Checkpoint& model);

}  // namespace wick
