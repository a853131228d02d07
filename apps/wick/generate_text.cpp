#include "generate_text.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "validators.h"
#include "wick/text/chat.h"

namespace wick {

namespace {

std::vector<int64_t> chat_ids(const Tokenizer& tokenizer, const std::string& name, const std::string& source,
                              const std::string& prompt) {
  const std::vector<ChatMessage> messages = {{"user", prompt}};
  return ChatTemplate::of(tokenizer, name, source).encode(tokenizer, messages).ids;
}

}  // namespace

std::vector<std::string> TextArguments::add_to(CLI::App& command) {
  std::vector<std::string> names = flags.add_to(command);
  command.add_flag("--json", json, "Print the text and what is known of it as one JSON object");
  command.add_flag("--until-full", until_full, "A full context ends the text, instead of being an error beforehand");
  command.add_flag("--chat", chat, "The prompt is a message: put it into the model's chat template");
  names.insert(names.end(), {"--json", "--until-full", "--chat"});
  return names;
}

void generate_text(const std::filesystem::path& model, const std::string& prompt, uint64_t seed,
                   const std::vector<std::string>& loras, const cli::RunOn& run_on, const TextArguments& arguments) {
  check_usage(arguments.chat || arguments.flags.chat_template == ChatTemplate::kAuto,
              "--chat-template: expected --chat with it");
  const auto ids_of = [&](const Tokenizer& tokenizer) {
    return arguments.chat ? chat_ids(tokenizer, arguments.flags.chat_template, model.string(), prompt)
                          // The writer of a prompt to complete may write control tokens, as with transformers.
                          : tokenizer.encode(prompt, {.parse_special = true});
  };
  const LlamaConfig config = LlamaConfig::read(model);
  const int64_t context = arguments.flags.context_of(config, config.positions);
  const int64_t most = std::clamp<int64_t>(arguments.flags.max_tokens, 1, context);  // beside a prompt not yet read
  const cli::OpenedModel opened = cli::OpenedModel::open(model, loras, arguments.flags, run_on, most,
                                                         [&](const Llama& unread, const Tokenizer& tokenizer) {
                                                           TextDecoder::rehearse(unread, ids_of(tokenizer).size());
                                                         });
  const LanguageModel& language = opened.language;
  TextRequest request = arguments.flags.request(language);
  request.sampling.seed = seed;
  request.until_full = arguments.until_full;
  request.prompt = ids_of(language.tokenizer);

  arguments.flags.fit(request, context);
  // The cache is no larger than the request.
  Generator generator(language.model, std::min(context, int64_t(request.prompt.size()) + request.max_tokens));
  const TextAnswer answer =
      generator(request, language.stream(/*at_start=*/arguments.chat), [&](std::string_view text) {
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
  cli::print_text("\n");
  if (arguments.flags.verbose) cli::print_statistics(answer, request.prompt.size(), opened);
}

}  // namespace wick
