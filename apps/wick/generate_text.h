// `wick generate` of a language model: completes a prompt.
#pragma once

#include "text_flags.h"

namespace wick {

struct TextArguments {
  cli::TextFlags flags;
  bool json = false, until_full = false, chat = false;

  std::vector<std::string> add_to(CLI::App& command);  // the names of its flags
};

void generate_text(const std::filesystem::path& model, const std::string& prompt, uint64_t seed,
                   const std::vector<std::string>& loras, const cli::RunOn& run_on, const TextArguments& arguments);

}  // namespace wick
