// The command line. Every failure of a command ends here as one line and an exit code: 2 where the command line, or a
// file of settings that stands for one, is wrong in itself, 1 for everything else.
#include <fcntl.h>
#include <fmt/ranges.h>
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

int run(int argc, char** argv) {
  CLI::App app{"", "wick"};
  wick::set_up(app);
  try {
    app.parse(wick::cli::words_of(app, argc, argv));
    if (app.get_subcommands().empty())
      return report(kWrongUsage, fmt::format("expected a command: {} (wick --help lists them)",
                                             fmt::join(wick::names_of_commands(app), ", ")));
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
  // A closed pipe and a limit on file sizes show as failed writes; a training run outlives its reader.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  fill_closed_streams();
  const int code = run(argc, argv);
  if (code != 0) std::fflush(stdout);
  // The system takes memory and devices back sooner than destructors do.
  std::_Exit(code != 0 ? code : flush_output());
}
