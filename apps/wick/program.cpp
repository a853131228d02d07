#include "program.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "command_line.h"
#include "commands.h"
#include "environment.h"
#include "wick/core/error.h"

namespace wick::cli {
namespace {

bool reader_is_gone() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

int report_output(int error) {
  if (error == EPIPE || reader_is_gone()) return 0;  // the reader of our output has read enough
  return report(kFailed, fmt::format("standard output: {}", std::strerror(error)));
}

}  // namespace

int run_program(int argc, char** argv) {
  CLI::App app{"", "wick"};
  set_up(app);
  try {
    check_environment();
    app.parse(words_of(app, argc, argv));
    if (app.get_subcommands().empty())
      return report(kWrongUsage, fmt::format("expected a command: {} (wick --help lists them)",
                                             fmt::join(names_of_commands(app), ", ")));
    return 0;
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    const auto commands = app.get_subcommands();
    const std::string help = commands.empty() ? "wick --help" : "wick " + commands.front()->get_name() + " --help";
    return report(kWrongUsage, fmt::format("{} (see {})", e.what(), help));
  } catch (const UsageError& e) {
    return report(kWrongUsage, with_flag(app, e.what()));
  } catch (const Error& e) {
    return report(kFailed, with_flag(app, e.what()));
  } catch (const std::system_error& e) {
    return std::ferror(stdout) ? report_output(e.code().value()) : report(kFailed, e.what());
  } catch (const std::bad_alloc&) {
    return report(kFailed, "out of memory");
  } catch (const std::exception& e) {
    return report(kFailed, fmt::format("unexpected failure: {}", e.what()));
  }
}

int flush_output() {
  if (std::fflush(stdout) != 0) return report_output(errno);
  return std::ferror(stdout) ? report_output(EIO) : 0;  // from a line of progress, whose error was ignored
}

}  // namespace wick::cli
