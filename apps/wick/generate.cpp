#include "generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "answer_printer.h"
#include "commands.h"
#include "defaults_help.h"
#include "flag_table.h"
#include "model_path.h"
#include "validators.h"
#include "wick/text/chat.h"
#include "wick/text/conversation.h"

namespace wick {
namespace {

struct TextPrompt {
  std::vector<int64_t> ids;
  std::string text;  // of a message in its template, where a thought may have begun
};

TextPrompt text_prompt(const GenerateArguments& a, const Tokenizer& tokenizer, const std::string& source) {
  const std::string& prompt = a.prompts.front();
  // The writer of a prompt to complete may write control tokens, as with transformers.
  if (!a.chat) return {tokenizer.encode(prompt, {.parse_special = true}), ""};
  const ChatTemplate chat_template(tokenizer, a.text.chat_of(a.loras), source);
  Conversation conversation;
  conversation.say("user", prompt);
  return {chat_template.prompt(conversation), chat_template.render(conversation).text};
}

void check_text_flags(const GenerateArguments& a) {
  check_usage(a.run_on.devices().size() == 1, "--gpus: pictures are shared among devices; a text has one");
  check_usage(a.prompts.size() == 1 && a.seeds.size() == 1, "expected one --prompt and one --seed, found {} and {}",
              a.prompts.size(), a.seeds.size());
  const auto needs_chat = [&](const char* flag, bool is_given) {
    check_usage(a.chat || !is_given, "{}: expected --chat with it", flag);
  };
  needs_chat("--chat-template", a.text.chat.name != ChatOptions::kAuto);
  needs_chat("--chat-template-kwargs", !a.text.chat.variables.empty());
  needs_chat("--template-date", !a.text.chat.date.empty());
}

void print_json(const TextAnswer& answer, size_t prompt_tokens, const cli::AnswerPrinter* printer) {
  nlohmann::json json{{"text", printer ? printer->answer() : answer.text},
                      {"finish_reason", name_of(answer.finish)},
                      {"prompt_tokens", prompt_tokens},
                      {"tokens", answer.ids.size()},
                      {"ids", answer.ids},
                      {"prompt_seconds", answer.prompt_seconds},
                      {"seconds", answer.answer_seconds}};
  if (printer) json["thought"] = printer->thought();
  cli::print_text(json.dump() + "\n");
}

// Answers a message in its template, or completes a text.
TextAnswer write_text(const GenerateArguments& a, const LanguageModel& language, Generator& generator,
                      const TextRequest& request, const std::string& prompt) {
  using Screen = cli::AnswerPrinter::Screen;
  cli::AnswerPrinter printer(prompt, a.json ? Screen::none() : Screen::standard());
  const TextStream stream =
      a.chat ? language.stream(/*at_start=*/true, thought_tokens()) : language.stream(/*at_start=*/false);
  const TextAnswer answer = generator(request, stream, [&](std::string_view text) {
    if (a.chat)
      printer.push(text);
    else if (!a.json)
      cli::print_text(text);
    return true;
  });
  printer.finish();
  if (a.json) print_json(answer, request.prompt.size(), a.chat ? &printer : nullptr);
  return answer;
}

void generate_text(const GenerateArguments& a, const std::filesystem::path& model) {
  check_text_flags(a);
  const LlamaConfig config = LlamaConfig::read(model);
  const int64_t context = a.text.context_of(config, config.positions);
  const auto length = [&](const Tokenizer& tokenizer) { return text_prompt(a, tokenizer, model.string()).ids.size(); };
  const int64_t most = std::clamp<int64_t>(a.text.max_tokens, 1, context);
  const cli::OpenedModel opened =
      cli::OpenedModel::open(model, a.loras, a.text, a.run_on, {most, "--max-tokens", length});
  const LanguageModel& language = opened.language;
  TextRequest request = a.text.request(language);
  request.sampling.seed = a.seeds.front();
  request.until_full = a.until_full;
  TextPrompt prompt = text_prompt(a, language.tokenizer, model.string());
  request.prompt = std::move(prompt.ids);
  a.text.fit(request, context);
  // The cache is no larger than the request.
  Generator generator(language.model, std::min(context, int64_t(request.prompt.size()) + request.max_tokens));
  const TextAnswer answer = write_text(a, language, generator, request, prompt.text);
  if (a.text.verbose) cli::print_statistics(answer, request.prompt.size(), opened);
}

void refuse(const CLI::App& command, const std::vector<std::string>& flags, const std::string& model,
            const char* kind) {
  for (const std::string& flag : flags)
    check_usage(command.count(flag) == 0, "{}: {} is a model of {}, which has no such flag", flag, model, kind);
}

void generate(const CLI::App& command, GenerateArguments& a) {
  if (!a.picture.from.empty()) a.settings.repeat(a.picture.from);
  check_usage(!a.prompts.empty(), "--prompt is required");
  check_usage(!a.model.model.empty() || !a.model.parts.empty() || a.picture.from.empty(),
              "--model is required: {} does not say where its model lies", a.picture.from);
  if (a.seeds.empty()) a.seeds.push_back(0);
  const Checkpoint folder = a.model.resolve();
  if (kind_of(folder) == ModelKind::pictures) {
    refuse(command, a.text_flags, a.model.name(), "pictures");
    for (const char* flag : {"--skip-layers", "--skip-layer-start", "--skip-layer-stop"})
      check_usage(command.count(flag) == 0 || command.count("--skip-layer-guidance") > 0,
                  "{}: expected a --skip-layer-guidance with it", flag);
    check_usage(command.count("--strength") == 0 || !a.picture.init.empty(), "--strength: expected an --init with it");
    return generate_pictures(a, folder);
  }
  refuse(command, a.picture_flags, a.model.name(), "language");
  generate_text(a, folder.path());
}

// Those that are not for pictures alone.
void carry_shared_flags(CLI::App& command, GenerateArguments& a) {
  cli::PictureSettings& settings = a.settings;
  settings.carry(command.get_option("--model"), a.model.model);
  // Another model has parts of its own.
  for (const ModelPart& part : model_parts())
    settings.carry_as_given(command.get_option(part_flag(part.name)), {.unless = {"--model"}});
  settings.carry(command.get_option("--prompt"), a.prompts);
  settings.carry(command.get_option("--lora"), a.loras);
  const auto has_seeds = [&a] { return a.picture.noise.empty(); };
  settings.carry(command.get_option("--seed"), a.seeds, {.unless = {"--noise"}, .is_used = has_seeds});
  for (const char* flag : cli::RunOn::kFlags) settings.carry_as_given(command.get_option(flag));
  settings.carry(command.get_option("--quantize"), a.text.held.quantize);
  settings.carry_as_given(command.get_option("--fp8-compute"), {.unless = {"--quantize"}});
  settings.carry_as_given(command.get_option("--memory"));
}

}  // namespace

void add_generate_command(CLI::App& app) {
  const auto a = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Draw pictures from text, or complete it");
  a->model.add_flags(*command, model_help());
  cli::begin_group(*command, "Model");
  cli::add_loras(*command, a->loras);
  cli::begin_group(*command, "Prompt");
  command
      ->add_option(
          "--prompt", a->prompts,
          "What to draw (several prompts and seeds are a labelled grid, or a folder of pictures) or the text to "
          "complete")
      ->required()
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command->add_option("--seed", a->seeds, "Seed of what is drawn by chance; may be repeated for pictures [0]")
      ->type_name("INT")
      ->allow_extra_args(false)
      ->transform(cli::seed_number());
  a->picture_flags = a->picture.add_to(*command, a->settings);
  cli::begin_group(*command, "Text");
  a->text_flags = a->text.add_to(*command, "its positions");
  const auto text = [&](const char* name, bool& value, const char* help) {
    a->text_flags.emplace_back(name);
    command->add_flag(name, value, help);
  };
  text("--json", a->json,
       "Print one JSON object with the text, its ids and times; with --chat the thought has a key of its own");
  text("--until-full", a->until_full, "A full context ends the text, instead of being an error beforehand");
  text("--chat", a->chat, "The prompt is a message in the model's chat template; thoughts are shown as in `wick chat`");
  a->run_on.add_flags(*command);
  a->run_on.add_gpus(*command, "Share the pictures among several CUDA devices: how many, all, or their numbers");
  a->text.held.add_flags(*command);
  a->picture_flags.emplace_back("--stream-text-encoder");
  command
      ->add_flag("--stream-text-encoder", a->text.held.stream_text_encoder,
                 "Keep T5's weights in the host's memory, from which they come block by block")
      ->excludes(command->get_option("--memory"));
  carry_shared_flags(*command, *a);
  command->footer(cli::defaults_help() +
                  "\n\n"
                  "Examples:\n"
                  "  wick generate --model tiny --prompt \"a red heart\" --out heart.png\n"
                  "  wick generate --model sdxl --bf16 --lora out/lora.safetensors:0.8 --compare \\\n"
                  "    --prompt \"a cat\" --prompt \"a dog\" --seed 1 --seed 2 --out grid.png\n"
                  "  wick generate --model flux-dev --bf16 --prompt \"a cat\" --steps 28 \\\n"
                  "    --guidance 3.5 --out cat.png\n"
                  "  wick generate --model sd3.5-medium --bf16 --prompt \"a cat\" --cfg 5 \\\n"
                  "    --skip-layer-guidance 2.5 --out cat.png\n"
                  "  wick generate --from cat.png --seed 2 --out another.png\n"
                  "  wick generate --from cat.png --seed 3 --seed 4 --seed 5 --out cats/\n"
                  "  wick generate --model tiny-llm --prompt \"Once upon a time\" --max-tokens 100");
  command->callback([a, command] { generate(*command, *a); });
}

}  // namespace wick
