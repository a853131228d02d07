// The command line. Whatever goes wrong in a command ends here as one line and an exit code: 2 where the command line
// itself is wrong, 1 for everything else.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "commands.h"
#include "wait_policy.h"
#include "wick/core/error.h"

namespace {

constexpr int kFailed = 1, kWrongUsage = 2;

int report(int code, std::string message) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  for (char& c : message)
    if (c == '\n' || c == '\r') c = ' ';
  fmt::print(stderr, "wick: {}\n", message);
  return code;
}

// To CLI11 every word with a dash before it is a flag. Behind --targets it is a pattern that excludes: each of its
// words gets the flag. The last comes first, as CLI11 wants them.
std::vector<std::string> words_of(int argc, char** argv) {
  const auto is_flag = [](std::string_view word) { return word.starts_with("--") || word == "-h"; };
  std::vector<std::string> words;
  bool in_targets = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (is_flag(word)) in_targets = word == "--targets" && i + 1 < argc && !is_flag(argv[i + 1]);
    if (in_targets && is_flag(word)) continue;
    words.push_back(in_targets ? "--targets=" + word : word);
  }
  std::reverse(words.begin(), words.end());
  return words;
}

// Whether a message is about a file or folder, or about what is in it.
bool is_about(std::string_view message, std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (path.empty() || !message.starts_with(path)) return false;
  message.remove_prefix(path.size());
  return message.starts_with(':') || message.starts_with('/');
}

// As a flag had it, or a setting that was made absolute; FILE:STRENGTH stands for its file.
bool is_about_word(std::string_view message, const std::string& word) {
  for (const std::string& path : {word, word.substr(0, word.rfind(':'))}) {
    std::error_code error;
    if (is_about(message, path) ||
        is_about(message, absolute(std::filesystem::path(path), error).lexically_normal().string()))
      return true;
  }
  return false;
}

// Where a message begins with a path that a flag gave, it is told with the flag: "--val b.jsonl: line 2: …".
std::string with_flag(const CLI::App& app, const std::string& message) {
  std::string flag;
  size_t longest = 0;
  for (const CLI::App* command : app.get_subcommands())
    for (const CLI::Option* option : command->get_options())
      for (const std::string& word : option->results())
        if (word.size() > longest && option->get_name().starts_with("--") && is_about_word(message, word)) {
          flag = option->get_name() + " ";
          longest = word.size();
        }
  return flag + message;
}

int run(int argc, char** argv) {
  CLI::App app{"Wick trains LoRA adapters for diffusion models and language models, and runs them.", "wick"};
  app.set_version_flag("--version", "wick " WICK_VERSION);
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(34);
  wick::add_train_command(app);
  wick::add_plan_command(app);
  wick::add_generate_command(app);
  wick::add_chat_command(app);
  wick::add_eval_command(app);
  wick::add_merge_command(app);
  wick::add_convert_command(app);
  wick::add_inspect_command(app);
  wick::add_forward_command(app);
  wick::add_doctor_command(app);
  app.footer("`wick COMMAND --help` lists a command's flags.");
  try {
    app.parse(words_of(argc, argv));
    if (app.get_subcommands().empty())
      return report(kWrongUsage,
                    "expected a command: train, plan, generate, chat, eval, merge, convert, inspect, forward or doctor "
                    "(wick --help lists them)");
    return 0;
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    const auto commands = app.get_subcommands();
    const std::string help = commands.empty() ? "wick --help" : "wick " + commands.front()->get_name() + " --help";
    return report(kWrongUsage, fmt::format("{} (see {})", e.what(), help));
  } catch (const wick::UsageError& e) {
    return report(kWrongUsage, with_flag(app, e.what()));
  } catch (const wick::Error& e) {
    return report(kFailed, with_flag(app, e.what()));
  } catch (const std::system_error& e) {
    if (e.code().value() == EPIPE) return 0;  // whoever read our output has read enough
    return report(kFailed, e.what());
  } catch (const std::bad_alloc&) {
    return report(kFailed, "out of memory");
  } catch (const std::exception& e) {
    return report(kFailed, fmt::format("unexpected failure: {}", e.what()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  wick::cli::wait_briefly(argv);
  // A closed pipe and a limit on file sizes show as failed writes; a training run outlives its reader.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = run(argc, argv);
  if (std::fflush(stdout) == 0 || errno == EPIPE || code != 0) return code;
  return report(kFailed, fmt::format("standard output: {}", std::strerror(errno)));
}
