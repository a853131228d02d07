// --help of every command, from the table of its flags and at several widths.
#include <set>
#include <sstream>

#include "apps/wick/flag_table.h"
#include "apps/wick/train_flags.h"
#include "cli/program.h"
#include "cli/whole_program.h"

namespace wick {
namespace {

size_t characters(const std::string& utf8) {
  return size_t(std::ranges::count_if(utf8, [](char c) { return (uint8_t(c) & 0xC0) != 0x80; }));
}

std::set<std::string> lines_of(const std::string& text) {
  std::istringstream lines(text);
  std::set<std::string> all;
  for (std::string line; std::getline(lines, line);) all.insert(line);
  return all;
}

TEST(Help, EveryFlagHasAGroupATextAndAType) {
  const WholeProgram program;
  for (const CLI::App* command : program.app.get_subcommands({})) {
    for (const CLI::Option* option : command->get_options()) {
      SCOPED_TRACE(command->get_name() + " " + option->get_name());
      const bool is_of_all = option == command->get_help_ptr() || option == command->get_version_ptr();
      const bool is_hidden = option == command->get_option_no_throw(cli::kKohyaWordFlag);
      EXPECT_EQ(option->get_group().empty(), is_of_all || is_hidden);
      EXPECT_NE(option->get_group(), "Flags") << "the group of flags that are given none";
    }
    for (const cli::FlagRow& row : cli::flag_table(*command)) {
      SCOPED_TRACE(command->get_name() + " " + (row.is_positional() ? row.value : row.names.front()));
      EXPECT_FALSE(row.text.empty());
      EXPECT_FALSE(row.text.ends_with('.') || row.text.find(" [0") != row.text.npos) << row.text;
      EXPECT_EQ(row.text.find("default"), row.text.npos) << "a default stands at the end, in brackets";
      EXPECT_EQ(std::ranges::count(std::vector<std::string>{"UINT", "FLOAT", "BOOLEAN"}, row.value), 0) << row.value;
      const bool is_switch =
          !row.is_positional() && command->get_option(row.names.back())->get_items_expected_max() == 0;
      EXPECT_EQ(row.value.empty(), is_switch);
    }
  }
}

TEST(Help, DefaultsAreApartFromTexts) {
  const WholeProgram program;
  std::map<std::string, std::string> otherwise;
  for (const cli::FlagRow& row : cli::flag_table(*program.app.get_subcommand("train")))
    otherwise[row.names.front()] = row.otherwise;
  EXPECT_EQ(otherwise.at("--batch-size"), "1");
  EXPECT_EQ(otherwise.at("--alpha"), "the rank");
  EXPECT_EQ(otherwise.at("--model"), "");
}

TEST(Help, EveryCommandHasExamples) {
  for (const WholeProgram program; const CLI::App* command : program.commands()) {
    const std::string& footer = command->get_footer();
    const size_t begin = std::min(footer.find("Examples:\n"), footer.size());
    size_t examples = 0;
    for (const std::string& line : lines_of(footer.substr(begin)))
      examples +=
          line.starts_with("  ") && line.find("wick " + (command->get_parent() ? command->get_name() : "")) < 40;
    EXPECT_GE(examples, 2u) << command->get_name();
  }
}

TEST(Help, IsNoWiderThanAsked) {
  const WholeProgram program;
  const std::string before = std::getenv("COLUMNS") ? std::getenv("COLUMNS") : "";
  for (const size_t columns : {40, 69, 70, 80, 120}) {
    setenv("COLUMNS", std::to_string(columns).c_str(), 1);
    size_t widest = 0;
    for (const CLI::App* command : program.commands()) {
      const std::set<std::string> as_written = lines_of(command->get_footer());
      for (const std::string& line : lines_of(command->help())) {
        const bool is_example = line.starts_with(' ') && as_written.contains(line);
        EXPECT_LE(characters(line), is_example ? std::max<size_t>(columns, 80) : columns)
            << command->get_name() << ": " << line;
        if (!is_example) widest = std::max(widest, characters(line));
      }
    }
    EXPECT_GT(widest, columns - 5);
  }
  before.empty() ? unsetenv("COLUMNS") : setenv("COLUMNS", before.c_str(), 1);
}

// Below 70 columns texts stand under the flags; without a terminal and without COLUMNS, and with one that is no number,
// there are 80.
TEST(Help, TheEnvironmentSaysHowWide) {
  EXPECT_NE(
      run_wick("help eval", "COLUMNS=40").out.find("\n  --json\n      Print the result as one JSON\n      object\n"),
      std::string::npos);
  const std::string usual = run_wick("help eval", "COLUMNS=80").out;
  EXPECT_NE(usual.find("\n  --json                      Print the result as one JSON object\n"), std::string::npos);
  EXPECT_EQ(run_wick("help eval", "unset COLUMNS;").out, usual);
  EXPECT_EQ(run_wick("help eval", "COLUMNS=wide").out, usual);
}

}  // namespace
}  // namespace wick
