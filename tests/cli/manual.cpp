// Man pages, and what `cmake --install` leaves of them.
#include "apps/wick/flag_table.h"
#include "apps/wick/man_page.h"
#include "cli/program.h"
#include "cli/whole_program.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

std::string run_well(const std::string& arguments) {
  const Outcome outcome = run_wick(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.out;
}

bool has_program(const std::string& name) { return std::system(("command -v " + name + " >/dev/null").c_str()) == 0; }

TEST(Manual, IsPrintedOrWritten) {
  EXPECT_TRUE(run_well("manual").starts_with(".TH WICK 1 "));
  EXPECT_TRUE(run_well("manual train").starts_with(".TH WICK\\-TRAIN 1 "));
  const TemporaryDirectory folder;
  const fs::path pages = folder / "share/man1";
  write_plain(folder / "old", "");
  for (int times = 0; times < 2; ++times) EXPECT_EQ(run_well("manual --output '" + pages.string() + "'"), "");
  EXPECT_EQ(read_plain(pages / "wick.1"), run_well("manual"));
  const WholeProgram program;
  for (const CLI::App* command : program.commands())
    EXPECT_EQ(read_plain(pages / (cli::man_page_name(*command) + ".1")), cli::man_page(*command));
  const Outcome other = run_wick("manual trian");
  expect_one_line(other, {"trian: no such command; did you mean train?"});
  EXPECT_EQ(other.code, 2);
  expect_one_line(run_wick("manual train --output '" + pages.string() + "'"), {"--output", "command"});
  expect_one_line(run_wick("manual --output '" + (folder / "old").string() + "'"), {(folder / "old").string()});
}

// As a reader of man pages shows them: every flag with its value, and its text to the last word.
TEST(Manual, ShowsEveryFlag) {
  if (!has_program("groff")) GTEST_SKIP() << "no groff is installed";
  const TemporaryDirectory folder;
  const WholeProgram program;
  for (const CLI::App* command : program.commands()) {
    write_plain(folder / "page.1", cli::man_page(*command));
    const std::string groff = "groff -man -Tutf8 -P-c -ww -rLL=1000n '" + (folder / "page.1").string() + "' >'" +
                              (folder / "out").string() + "' 2>'" + (folder / "err").string() + "'";
    ASSERT_EQ(std::system(groff.c_str()), 0);
    EXPECT_EQ(read_plain(folder / "err"), "") << command->get_name();
    std::string page = read_plain(folder / "out");
    for (size_t at = 0; (at = page.find('\b', at)) != page.npos;) page.erase(--at, 2);  // bold is struck twice
    for (const cli::FlagRow& row : cli::flag_table(*command)) {
      const std::string head =
          row.is_positional() ? row.value : row.names.back() + (row.value.empty() ? "" : " " + row.value);
      EXPECT_NE(page.find(head), page.npos) << head;
      const std::string text = row.text + (row.otherwise.empty() ? "" : " [" + row.otherwise + "]");
      EXPECT_NE(page.find(text), page.npos) << head << ": " << text;
    }
    EXPECT_NE(page.find("EXAMPLES"), page.npos);
  }
}

TEST(Manual, IsInstalledWithCompletions) {
  const fs::path build = fs::path(WICK_BINARY).parent_path().parent_path();
  if (!fs::exists(build / "cmake_install.cmake")) GTEST_SKIP() << "the program was built elsewhere";
  const TemporaryDirectory folder;
  const std::string out = (folder / "out").string(), prefix = (folder / "usr").string();
  const std::string install = "cmake --install '" + build.string() + "' --prefix '" + prefix + "' >'" + out + "' 2>&1";
  ASSERT_EQ(std::system(install.c_str()), 0) << read_plain(out);
  const fs::path share = fs::path(prefix) / "share";
  EXPECT_EQ(read_plain(share / "man/man1/wick-train.1"), run_well("manual train"));
  EXPECT_EQ(read_plain(share / "bash-completion/completions/wick"), run_well("completions bash"));
  EXPECT_EQ(read_plain(share / "zsh/site-functions/_wick"), run_well("completions zsh"));
  EXPECT_EQ(read_plain(share / "fish/vendor_completions.d/wick.fish"), run_well("completions fish"));
  // The installed program finds the models beside it.
  const std::string wick = "'" + prefix + "/bin/wick' inspect '" + (share / "wick/models/tiny-llm").string() + "'";
  EXPECT_EQ(std::system((wick + " >/dev/null && cd / && '" + prefix +
                         "/bin/wick' plan --model tiny-llm --device cpu >'" + out + "' 2>&1")
                            .c_str()),
            0)
      << read_plain(out);
}

}  // namespace
}  // namespace wick
