#include "wick/text/shipped_tokenizer.h"

#include <fmt/ranges.h>

#include <cstdlib>
#include <vector>

#include "wick/core/error.h"

namespace wick {

namespace fs = std::filesystem;

fs::path shipped_tokenizer(const std::string& name) {
  std::vector<std::string> tried;
  std::error_code ignored;
  const auto is_there = [&](const fs::path& folder) {
    tried.push_back((folder / name).string());
    return fs::is_directory(folder / name, ignored);
  };
  if (const char* given = std::getenv("WICK_TOKENIZERS"); given && *given) {
    if (is_there(given)) return fs::path(given) / name;
  } else {
    const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
    fs::path above = program.parent_path();
    for (int up = 0; up < 4 && above.has_relative_path(); ++up) {
      above = above.parent_path();
      if (is_there(above / "share/wick/tokenizers")) return above / "share/wick/tokenizers" / name;
    }
  }
  fail("the tokenizer \"{}\", which comes with set-up, was not found; looked for {}; run scripts/setup-tokenizers",
       name, fmt::join(tried, ", "));
}

}  // namespace wick
