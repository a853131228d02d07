#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "chat_history.h"
#include "chat_line.h"
#include "command_line.h"
#include "commands.h"
#include "flag_table.h"
#include "line_editor.h"
#include "model_path.h"
#include "text_flags.h"
#include "validators.h"
#include "wick/core/memory.h"
#include "wick/io/count.h"
#include "wick/io/file.h"
#include "wick/io/quote.h"
#include "wick/text/chat.h"
#include "wick/train/interrupt.h"

namespace wick {
namespace {

constexpr int64_t kContext = 4096;  // unless given, since a cache of all positions may be larger than the model

struct ChatArguments {
  std::string model, on_full = "error";
  std::optional<std::string> system;
  std::vector<std::string> loras;
  uint64_t seed = 0;
  bool no_thinking = false;
  cli::TextFlags flags;
  cli::RunOn run_on;
};

class Conversation {
 public:
  Conversation(const ChatArguments& arguments, const cli::OpenedModel& opened)
      : a_(arguments),
        opened_(opened),
        language_(opened.language),
        template_(ChatTemplate::of(language_.tokenizer, a_.flags.chat_template, a_.model)),
        generator_(language_.model, a_.flags.context_of(language_.model.config(), kContext)) {
    start_anew();
  }

  void start_anew() {
    messages_.clear();
    forgotten_.clear();
    if (a_.system) messages_.push_back({"system", *a_.system});
  }

  // Answers on standard output. Throws Error, and has not heard the message, if the context is full.
  void hear(const std::string& message) {
    messages_.push_back({"user", message});
    TextRequest request;
    try {
      request = next_request();
    } catch (...) {
      messages_.pop_back();
      throw;
    }
    const Interrupt interrupt;  // Ctrl-C ends the answer, twice the program
    const TextAnswer answer = generator_(request, language_.stream(/*at_start=*/true), [&](std::string_view text) {
      cli::print_text(text);
      return !interrupt.requested();
    });
    cli::print_text("\n");
    messages_.push_back({"assistant", answer.text});
    if (a_.flags.verbose) cli::print_statistics(answer, request.prompt.size(), opened_);
  }

  // Writes all that was said, also what was forgotten. An existing file stays, unless it was written here.
  void save(const std::string& name) {
    const std::filesystem::path file = std::filesystem::absolute(name).lexically_normal();
    check(messages_.size() > (a_.system ? 1 : 0), "/save {}: nothing has been said yet", name);
    std::error_code ignored;
    check(saved_.contains(file) || !std::filesystem::exists(file, ignored),
          "/save {}: the file exists; choose another name", name);
    cli::check_output_file({.path = file, .flag = "/save", .overwrite = true});
    std::vector<ChatMessage> all = messages_;
    all.insert(all.begin() + (a_.system ? 1 : 0), forgotten_.begin(), forgotten_.end());
    nlohmann::ordered_json line;
    for (const ChatMessage& m : all) line["messages"].push_back({{"role", m.role}, {"content", m.content}});
    write_file_atomically(file, line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    saved_.insert(file);
    fmt::print(stderr, "Wrote {} to {}\n", count_of(all.size(), "message"), printable(name));
  }

 private:
  TextRequest next_request() {
    for (;;) {
      TextRequest request = a_.flags.request(language_);
      request.sampling.seed = a_.seed + answers_;
      request.prompt = template_.encode(language_.tokenizer, messages_, {.enable_thinking = !a_.no_thinking}).ids;
      try {
        a_.flags.fit(request, generator_.context());
      } catch (const Error&) {
        if (a_.on_full == "error" || !forget_oldest()) throw;
        continue;
      }
      ++answers_;
      return request;
    }
  }

  // Forgets the user's first message and its answer; false if that message is the one to be answered.
  bool forget_oldest() {
    const auto first = messages_.begin() + (a_.system ? 1 : 0);
    if (messages_.end() - first < 3) return false;
    forgotten_.insert(forgotten_.end(), first, first + 2);
    messages_.erase(first, first + 2);
    return true;
  }

  const ChatArguments& a_;
  const cli::OpenedModel& opened_;
  const LanguageModel& language_;
  ChatTemplate template_;
  Generator generator_;
  std::vector<ChatMessage> messages_, forgotten_;  // the latter stood first, behind the system's
  std::set<std::filesystem::path> saved_;
  uint64_t answers_ = 0;
};

// The next line of standard input without its end, false behind the last. It may be of any kind, a device without end
// among them.
bool read_line(std::string& line) {
  constexpr size_t kLongest = size_t{1} << 20;
  line.clear();
  for (int c = 0; (c = std::getchar()) != EOF;) {
    if (c == '\n') return true;
    check(line.size() < kLongest, "standard input: expected lines of at most {}, found a longer one",
          readable_bytes(kLongest));
    line += char(c);
  }
  check(std::ferror(stdin) == 0, "standard input: cannot be read: {}", std::strerror(errno));
  return !line.empty();
}

// False ends the chat.
bool act_on(const std::string& line, Conversation& conversation) {
  const cli::ChatLine read = cli::parse_chat_line(line);
  switch (read.action) {
    case cli::ChatAction::say:
      conversation.hear(read.text);
      break;
    case cli::ChatAction::help:
      fmt::print(stderr, "{}", cli::chat_help());
      break;
    case cli::ChatAction::reset:
      conversation.start_anew();
      break;
    case cli::ChatAction::save:
      conversation.save(read.text);
      break;
    case cli::ChatAction::exit:
      return false;
  }
  return true;
}

void chat_by_lines(Conversation& conversation) {
  for (std::string line; read_line(line);)
    if (!line.empty() && !act_on(line, conversation)) return;
}

void chat_at_terminal(Conversation& conversation) {
  fmt::print("A line is a message. /help lists commands; Ctrl-C ends an answer, Ctrl-D the chat.\n");
  std::signal(SIGINT, SIG_IGN);  // between an answer, which it ends, and the next line, where Ctrl-C is a key
  cli::ChatHistory history(cli::ChatHistory::file());
  cli::LineEditor editor(history.lines());
  for (bool goes_on = true; goes_on;) {
    std::fflush(stdout);
    const std::optional<std::string> line = editor.next();
    if (!line) return cli::print_text("\n");
    history.add(*line);
    try {
      if (!line->empty()) goes_on = act_on(*line, conversation);
    } catch (const Error& e) {
      cli::report(0, e.what());
    }
  }
}

void chat(const ChatArguments& a) {
  const std::filesystem::path model = cli::resolve_language_model(a.model);
  const cli::OpenedModel opened = cli::OpenedModel::open(
      model, a.loras, a.flags, a.run_on, {a.flags.context_of(LlamaConfig::read(model), kContext), "--context"});
  Conversation conversation(a, opened);
  isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) ? chat_at_terminal(conversation) : chat_by_lines(conversation);
}

}  // namespace

void add_chat_command(CLI::App& app) {
  const auto a = std::make_shared<ChatArguments>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a language model");
  cli::begin_group(*command, "Model");
  cli::add_language_model(*command, a->model);
  cli::add_loras(*command, a->loras);
  cli::begin_group(*command, "Conversation");
  command->add_option("--system", a->system, "What the model is told before the first message")->type_name("TEXT");
  cli::set_choices(command->add_option("--on-full", a->on_full,
                                       "Where the context is full: an error, or forget what was said first [error]"),
                   {"error", "forget"});
  command->add_flag("--no-thinking", a->no_thinking, "Answer at once, where a model may think first");
  cli::begin_group(*command, "Answers");
  command->add_option("--seed", a->seed, "Seed of the first answer's draws [0]")
      ->type_name("INT")
      ->transform(cli::seed_number());
  a->flags.add_to(*command, "4096, or its positions");
  a->run_on.add_flags(*command);
  a->flags.held.add_flags(*command);
  command->footer(
      "Messages are lines of standard input, also where that is no terminal. At a terminal they are edited, and the "
      "arrow keys bring earlier ones back, of other chats too. Lines that begin with a slash are commands, among them "
      "/help, /reset, /save FILE and /exit; \"//etc\" says \"/etc\".\n"
      "\n"
      "Examples:\n"
      "  wick chat --model tiny-llm --lora out/lora\n"
      "  wick chat --model path/to/model.gguf --system \"Answer in one sentence.\"\n"
      "  wick chat --model path/to/model --temperature 0 < questions.txt > answers.txt");
  command->callback([a] { chat(*a); });
}

}  // namespace wick
