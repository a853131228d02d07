// The command line. Every failure of a command ends here as one line and an exit code: 2 where the command line, or a
// file of settings that stands for one, is wrong in itself, 1 for everything else.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "command_line.h"
#include "commands.h"
#include "help.h"
#include "wait_policy.h"
#include "wick/core/error.h"

namespace {

using wick::cli::report;

constexpr int kFailed = 1, kWrongUsage = 2;

// If the program was started without a standard stream, the first file opened would get its number, and be written to
// or read in its place. The stand-in for it reads as empty and fails to be written.
void fill_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDONLY);
}

bool reader_is_gone() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

int report_output(int error) {
  if (error == EPIPE || reader_is_gone()) return 0;  // the reader of our output has read enough
  return report(kFailed, fmt::format("standard output: {}", std::strerror(error)));
}

// 0, or the exit code of output that could not be written.
int flush_output() {
  if (std::fflush(stdout) != 0) return report_output(errno);
  return std::ferror(stdout) ? report_output(EIO) : 0;  // from a line of progress, whose error was ignored
}

void set_up(CLI::App& app) {
  app.formatter_fn(wick::cli::help_of);
  app.option_defaults()->group("Flags");
  app.set_help_flag("-h,--help", "Show what there is, of a command too: wick COMMAND --help")->group("Flags");
  app.set_version_flag("-V,--version", "wick " WICK_VERSION, "Show the version")->group("Flags");
  app.require_subcommand(0, 1);
  for (const auto add :
       {wick::add_train_command, wick::add_plan_command, wick::add_generate_command, wick::add_chat_command,
        wick::add_eval_command, wick::add_merge_command, wick::add_convert_command, wick::add_inspect_command,
        wick::add_forward_command, wick::add_doctor_command})
    add(app);
  for (CLI::App* command : app.get_subcommands({})) {  // every command gets these flags
    command->get_help_ptr()->group("");
    command->set_version_flag("-V,--version", "wick " WICK_VERSION)->group("");
  }
  app.footer(
      "Examples:\n"
      "  wick train --model tiny --dataset data/tiny-style --output out --steps 100\n"
      "  wick generate --model tiny --lora out/lora.safetensors \\\n"
      "    --prompt \"a red heart\" --out heart.png\n"
      "  wick train --model flux-dev --dataset pictures --output flux --bf16\n"
      "  wick plan --model sd3.5-large --bf16 --device cuda\n"
      "  wick chat --model tiny-llm\n"
      "\n"
      "Ends with 0, with 2 where the command line or a file of settings is wrong in itself, with 1 for files, "
      "models and devices, with 75 where a signal stopped a training run that can go on.");
}

int run(int argc, char** argv) {
  CLI::App app{"Wick trains LoRA adapters for diffusion models and language models, and runs them.", "wick"};
  set_up(app);
  try {
    app.parse(wick::cli::words_of(app, argc, argv));
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
    return report(kWrongUsage, wick::cli::with_flag(app, e.what()));
  } catch (const wick::Error& e) {
    return report(kFailed, wick::cli::with_flag(app, e.what()));
  } catch (const std::system_error& e) {
    return std::ferror(stdout) ? report_output(e.code().value()) : report(kFailed, e.what());
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
  fill_closed_streams();
  const int code = run(argc, argv);
  if (code != 0) std::fflush(stdout);
  // The system takes memory and devices back sooner than destructors do.
  std::_Exit(code != 0 ? code : flush_output());
}
