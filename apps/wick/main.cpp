// The process of the program: what it has to settle with the system before and behind a command.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "program.h"

namespace {

// If the program was started without a standard stream, the first file opened would get its number, and be written to
// or read in its place. The stand-in for it reads as empty and fails to be written.
void fill_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe and a limit on file sizes show as failed writes; a training run outlives its reader.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  fill_closed_streams();
  const int code = wick::cli::run_program(argc, argv);
  if (code != 0) std::fflush(stdout);
  // The system takes memory and devices back sooner than destructors do.
  std::_Exit(code != 0 ? code : wick::cli::flush_output());
}
