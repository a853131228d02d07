// Flags as documents show them, run as they stand.
#include <regex>

#include "cli/program.h"
#include "wick/train/foreign/page.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Rates of text encoders need these to be trained.
TEST(Documents, RatesByPatternRunAsWritten) {
  static const std::regex kFlags("--targets [^`|\\n]*--lr [^`|\\n]*");
  const std::string data = (test::source_dir() / "data/tiny-style").string();
  int found = 0;
  for (const auto& entry : fs::directory_iterator(test::source_dir() / "docs")) {
    if (entry.path().extension() != ".md") continue;
    const std::string text = read_plain(entry.path());
    EXPECT_EQ(std::regex_search(text, std::regex("(^|[^'] )--lr [0-9e-]+ 'text_encoder")), false)
        << entry.path() << " shows a rate for text encoders without their --targets";
    for (std::sregex_iterator match(text.begin(), text.end(), kFlags), end; match != end; ++match) {
      SCOPED_TRACE(entry.path().filename().string() + ": " + match->str());
      const TemporaryDirectory folder;
      const Outcome run = run_wick("train --model tiny --device cpu --steps 1 --resolution 64 --dataset '" + data +
                                   "' --output '" + (folder / "out").string() + "' " + match->str());
      EXPECT_EQ(run.code, 0) << run.err;
      ++found;
    }
  }
  EXPECT_EQ(found, 3);
}

// WICK_WRITE_DOCS=1 in the environment writes the page anew.
TEST(Documents, KeysOfOptionFilesAreThoseOfTheTables) {
  const fs::path page = test::source_dir() / "docs/option-files.md";
  if (std::getenv("WICK_WRITE_DOCS")) write_plain(page, option_files_page());
  EXPECT_EQ(read_plain(page), option_files_page());
}

}  // namespace
}  // namespace wick
