#include "wait_policy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace wick::cli {

std::string wait_policy() {
  for (const char* name : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"})
    if (const char* value = std::getenv(name)) return fmt::format("{}={}", name, value);
  return "";
}

void wait_briefly(char** argv) {
  if (!wait_policy().empty()) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || ::setenv("GOMP_SPINCOUNT", "10000", 0) != 0) return;
  ::execv(program.c_str(), argv);  // returns only on failure, and then threads wait by libgomp's default
}

}  // namespace wick::cli
