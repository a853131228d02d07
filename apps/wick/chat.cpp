#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "answer_printer.h"
#include "chat_history.h"
#include "chat_line.h"
#include "chat_messages.h"
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
#include "wick/text/conversation.h"
#include "wick/train/interrupt.h"

namespace wick {
namespace {

using Json = nlohmann::ordered_json;

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

class ChatSession {
 public:
  ChatSession(const ChatArguments& arguments, const cli::OpenedModel& opened)
      : a_(arguments),
        opened_(opened),
        language_(opened.language),
        template_(language_.tokenizer, a_.flags.chat_of(a_.loras), a_.model),
        generator_(language_.model, a_.flags.context_of(language_.model.config(), kContext)) {
    if (a_.no_thinking) conversation_.variables = {{"enable_thinking", false}};
    start_anew();
  }

  void start_anew() {
    conversation_.messages = Json::array();
    forgotten_ = Json::array();
    if (a_.system) conversation_.say("system", *a_.system);
  }

  // Throws Error, and has not heard the message, if the context is full or the template refuses it.
  void hear(const std::string& message) { answer({{"role", "user"}, {"content", message}}); }

  // Throws Error too if the model has not answered before.
  void hear_result(const std::string& result) {
    const Json& messages = conversation_.messages;
    check(!messages.empty() && messages.back().at("role") == "assistant",
          "/result: expected it behind an answer in which the model calls a tool, found none");
    answer({{"role", "tool"}, {"content", result}});
  }

  void take_tools(const std::string& file) { take(&Conversation::tools, "/tools", file, cli::tools_in_file); }
  void take_documents(const std::string& file) {
    take(&Conversation::documents, "/documents", file, cli::documents_in_file);
  }

  void tell_tools() const { fmt::print(stderr, "tools: {}\n", printable(cli::names_of_tools(conversation_.tools))); }

  void tell_documents() const { fmt::print(stderr, "{}\n", count_of(conversation_.documents.size(), "document")); }

  // Writes all that was said, also what was forgotten. An existing file stays, unless it was written here.
  void save(const std::string& name) {
    const std::filesystem::path file = std::filesystem::absolute(name).lexically_normal();
    check(conversation_.messages.size() > size_t(first()), "/save {}: nothing has been said yet", name);
    std::error_code ignored;
    check(saved_.contains(file) || !std::filesystem::exists(file, ignored),
          "/save {}: the file exists; choose another name", name);
    cli::check_output_file({.path = file, .flag = "/save", .overwrite = true});
    Json messages = conversation_.messages;
    messages.insert(messages.begin() + first(), forgotten_.begin(), forgotten_.end());
    Json line{{"messages", messages}};
    if (!conversation_.tools.is_null()) line["tools"] = conversation_.tools;
    if (!conversation_.documents.is_null()) line["documents"] = conversation_.documents;
    if (!conversation_.variables.is_null()) line["chat_template_kwargs"] = conversation_.variables;
    write_file_atomically(file, line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    saved_.insert(file);
    fmt::print(stderr, "Wrote {} to {}\n", count_of(messages.size(), "message"), printable(name));
  }

 private:
  // Answers a message on the screen.
  void answer(Json message) {
    const Json messages = conversation_.messages, forgotten = forgotten_;
    conversation_.messages.push_back(std::move(message));
    TextRequest request;
    try {
      request = next_request();
    } catch (...) {
      conversation_.messages = messages, forgotten_ = forgotten;
      throw;
    }
    cli::AnswerPrinter printer(template_.render(conversation_).text, cli::AnswerPrinter::Screen::standard());
    const Interrupt interrupt;  // Ctrl-C ends the answer, twice the program
    const TextStream stream = language_.stream(/*at_start=*/true, thought_tokens());
    const TextAnswer answer = generator_(request, stream, [&](std::string_view text) {
      printer.push(text);
      return !interrupt.requested();
    });
    printer.finish();
    conversation_.messages.push_back(cli::assistant_message(printer, template_));
    if (a_.flags.verbose) cli::print_statistics(answer, request.prompt.size(), opened_);
  }

  TextRequest next_request() {
    for (;;) {
      TextRequest request = a_.flags.request(language_);
      request.sampling.seed = a_.seed + answers_;
      request.prompt = template_.prompt(conversation_);
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

  // Forgets the user's first message and all up to the next one; false if the message to be answered is among that.
  bool forget_oldest() {
    Json& messages = conversation_.messages;
    const auto begin = messages.begin() + first();
    const auto end = std::find_if(begin + 1, messages.end(), [](const Json& m) { return m.at("role") == "user"; });
    if (end == messages.end()) return false;
    forgotten_.insert(forgotten_.end(), begin, end);
    messages.erase(begin, end);
    return true;
  }

  // Sets tools or documents to those of a file. A template that has no place for them would leave them out.
  void take(Json Conversation::*list, const char* command, const std::string& file, Json (*read)(const std::string&)) {
    Conversation with = conversation_;
    try {
      with.*list = read(file);
    } catch (const Error& e) {
      fail("{} {}", command, e.what());
    }
    if ((with.*list).empty()) with.*list = nullptr;
    try {
      template_.check_takes(with);
    } catch (const Error& e) {
      fail("{} {}: {}", command, file, e.what());
    }
    conversation_ = std::move(with);
  }

  ptrdiff_t first() const { return a_.system ? 1 : 0; }  // the message behind the system's

  const ChatArguments& a_;
  const cli::OpenedModel& opened_;
  const LanguageModel& language_;
  ChatTemplate template_;
  Generator generator_;
  Conversation conversation_;
  Json forgotten_ = Json::array();  // messages that stood first, behind the system's
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
bool act_on(const std::string& line, ChatSession& session) {
  const cli::ChatLine read = cli::parse_chat_line(line);
  switch (read.action) {
    case cli::ChatAction::say:
      session.hear(read.text);
      break;
    case cli::ChatAction::help:
      fmt::print(stderr, "{}", cli::chat_help());
      break;
    case cli::ChatAction::reset:
      session.start_anew();
      break;
    case cli::ChatAction::tools:
      if (!read.text.empty()) session.take_tools(read.text);
      session.tell_tools();
      break;
    case cli::ChatAction::documents:
      if (!read.text.empty()) session.take_documents(read.text);
      session.tell_documents();
      break;
    case cli::ChatAction::result:
      session.hear_result(read.text);
      break;
    case cli::ChatAction::save:
      session.save(read.text);
      break;
    case cli::ChatAction::exit:
      return false;
  }
  return true;
}

void chat_by_lines(ChatSession& session) {
  for (std::string line; read_line(line);)
    if (!line.empty() && !act_on(line, session)) return;
}

void chat_at_terminal(ChatSession& session) {
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
      if (!line->empty()) goes_on = act_on(*line, session);
    } catch (const Error& e) {
      cli::report(0, e.what());
    }
  }
}

void chat(const ChatArguments& a) {
  const std::filesystem::path model = cli::resolve_language_model(a.model);
  const cli::OpenedModel opened = cli::OpenedModel::open(
      model, a.loras, a.flags, a.run_on, {a.flags.context_of(LlamaConfig::read(model), kContext), "--context"});
  ChatSession session(a, opened);
  isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) ? chat_at_terminal(session) : chat_by_lines(session);
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
      "/help, /reset, /tools FILE, /save FILE and /exit; \"//etc\" says \"/etc\".\n"
      "\n"
      "The thoughts of a model that thinks are shown before its answers: at a terminal in faint letters, unless "
      "NO_COLOR "
      "is set; where standard output is no terminal, on standard error.\n"
      "\n"
      "Examples:\n"
      "  wick chat --model tiny-llm --lora out/lora\n"
      "  wick chat --model path/to/model.gguf --system \"Answer in one sentence.\"\n"
      "  wick chat --model path/to/model --temperature 0 < questions.txt > answers.txt");
  command->callback([a] { chat(*a); });
}

}  // namespace wick
