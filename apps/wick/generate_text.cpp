#include "generate_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "validators.h"

namespace wick {

std::vector<std::string> TextArguments::add_to(CLI::App& command) {
  std::vector<std::string> names = flags.add_to(command);
  command.add_flag("--json", json, "Print the text and what is known of it as one JSON object");
  command.add_flag("--until-full", until_full, "A full context ends the text, instead of being an error beforehand");
  names.insert(names.end(), {"--json", "--until-full"});
  return names;
}

void generate_text(const std::filesystem::path& model, const std::string& prompt, uint64_t seed,
                   const std::vector<std::string>& loras, const cli::RunOn& run_on, const TextArguments& arguments) {
  const cli::OpenedModel opened = cli::OpenedModel::open(model, loras, run_on);
  const LanguageModel& language = opened.language;
  TextRequest request = arguments.flags.request(language);
  request.sampling.seed = seed;
  request.until_full = arguments.until_full;
  // Whoever writes a prompt for a completion may write control tokens, as with transformers.
  request.prompt = language.tokenizer.encode(prompt, {.parse_special = true});

  const LlamaConfig& config = language.model.config();
  const int64_t context = arguments.flags.context_of(config, config.positions);
  arguments.flags.fit(request, context);
  // The cache is no larger than what is asked for.
  Generator generator(language.model, std::min(context, int64_t(request.prompt.size()) + request.max_tokens));
  const TextAnswer answer = generator(request, language.stream(), [&](std::string_view text) {
    if (!arguments.json) cli::print_text(text);
    return true;
  });
  if (arguments.json)
    fmt::print("{}", nlohmann::json({{"text", answer.text},
                                     {"finish_reason", name_of(answer.finish)},
                                     {"prompt_tokens", request.prompt.size()},
                                     {"tokens", answer.ids.size()},
                                     {"ids", answer.ids},
                                     {"prompt_seconds", answer.prompt_seconds},
                                     {"seconds", answer.answer_seconds}})
                         .dump());
  fmt::print("\n");
  if (arguments.flags.verbose) cli::print_statistics(answer, request.prompt.size(), opened);
}

}  // namespace wick
