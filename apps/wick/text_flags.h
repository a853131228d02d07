// The flags that say how a language model writes, the same for `generate` and `chat`, and the model opened by them.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flags.h"
#include "wick/pipelines/language_model.h"
#include "wick/text/chat.h"

namespace wick::cli {

struct TextFlags {
  int64_t max_tokens = 0, context = 0;  // 0: as many as there is room for, up to kMaxTokens; as the command has it
  static constexpr int64_t kMaxTokens = 256;
  Sampling sampling;
  std::vector<std::string> stops;
  HoldingFlags held;  // commands add its flags
  ChatOptions chat;
  bool verbose = false;

  // Adds all but the seed; returns their names. `context_otherwise` says what --context is where it is not given.
  std::vector<std::string> add_to(CLI::App& command, const std::string& context_otherwise);
  // Throws Error if the model has fewer positions; `fallback` where none are asked for.
  int64_t context_of(const LlamaConfig& config, int64_t fallback) const;
  // With the template of the adapters, where --chat-template is `auto` and they have one.
  ChatOptions chat_of(const std::vector<std::string>& loras) const;
  TextRequest request(const LanguageModel& language) const;  // all but prompt, seed and length
  // Sets the length of an answer in a context of `room` tokens. Throws Error if the requested one does not fit.
  void fit(TextRequest& request, int64_t room) const;
};

// A model with the LoRAs of the command line.
struct OpenedModel {
  std::unique_ptr<Adapter> adapter;
  LanguageModel language;

  // The size of its cache: the prompt, and at most `tokens` behind it. The user sets `tokens` by `flag`.
  struct Asked {
    int64_t tokens;
    const char* flag;                                               // "--context"
    std::function<size_t(const Tokenizer& tokenizer)> prompt = {};  // its tokens, where they are known beforehand
  };
  // Refuses a model that does not fit into the CPU's memory with a cache of so many tokens.
  static OpenedModel open(const std::filesystem::path& path, const std::vector<std::string>& loras,
                          const TextFlags& flags, const RunOn& run_on, const Asked& asked);
};

// Puts out a piece of an answer at once, on a terminal without control characters, which could drive it.
void print_text(std::string_view text);

// Prints an answer's times and the memory's contents on standard error.
void print_statistics(const TextAnswer& answer, size_t prompt, const OpenedModel& opened);

}  // namespace wick::cli
