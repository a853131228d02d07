#include "help.h"

#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "flag_table.h"

namespace wick::cli {
namespace {

constexpr size_t kColumn = 30, kNarrowColumn = 6;  // where texts begin

size_t columns() {
  const std::string_view asked = std::getenv("COLUMNS") ? std::getenv("COLUMNS") : "";
  size_t number = 0;
  std::from_chars(asked.data(), asked.data() + asked.size(), number);
  winsize size{};
  if (number == 0 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) number = size.ws_col;
  return number == 0 ? 80 : std::clamp<size_t>(number, 40, 120);
}

bool is_narrow() { return columns() < 70; }

size_t width_of(std::string_view text) {  // in characters of UTF-8
  return size_t(std::ranges::count_if(text, [](char c) { return (uint8_t(c) & 0xC0) != 0x80; }));
}

// Text in lines, the first of which holds `at` characters already and the others begin at `column`. They are broken
// between words, and behind bars and slashes of words that do not fit into a line.
class Lines {
 public:
  Lines(size_t at, size_t column) : at_(at), column_(column) {}

  Lines& add(const std::string& text) {
    std::istringstream words(text);
    for (std::string word; words >> word;) add_word(word);
    return *this;
  }
  std::string str() const { return text_ + "\n"; }

 private:
  void add_word(std::string_view word) {
    if (!text_.empty() && at_ + 1 + width_of(word) > columns())
      break_line();
    else if (!text_.empty())
      put(" ");
    while (at_ + width_of(word) > columns()) {
      const size_t room = columns() - at_;
      const size_t end = word.substr(0, room).find_last_of("|/");
      if (end == word.npos) break;
      put(word.substr(0, end + 1));
      word.remove_prefix(end + 1);
      break_line();
    }
    put(word);
  }
  void put(std::string_view text) {
    text_ += text;
    at_ += width_of(text);
  }
  void break_line() {
    text_ += "\n" + std::string(column_, ' ');
    at_ = column_;
  }

  std::string text_;
  size_t at_, column_;
};

std::string paragraph(const std::string& text) { return Lines(0, 0).add(text).str(); }

std::string row(const std::string& name, const std::string& text) {
  const size_t column = is_narrow() ? kNarrowColumn : kColumn;
  const std::string left = "  " + Lines(2, kNarrowColumn).add(name).str();
  if (is_narrow() || left.size() + 1 > kColumn)
    return left + std::string(column, ' ') + Lines(column, column).add(text).str();
  return left.substr(0, left.size() - 1) + std::string(kColumn + 1 - left.size(), ' ') +
         Lines(column, column).add(text).str();
}

// Further names of a flag stand behind its text.
std::string row_of(const FlagRow& flag) {
  std::string name, text = flag.text;
  std::vector<std::string> also;
  for (const std::string& one : flag.names)
    if (one.starts_with("--") && name.find("--") != name.npos)
      also.push_back(one);
    else
      name += (name.empty() ? "" : ",") + one;
  if (!flag.value.empty()) name += (name.empty() ? "" : " ") + flag.value;
  if (!also.empty()) text += fmt::format(" (also {})", fmt::join(also, ", "));
  return row(name, text + (flag.otherwise.empty() ? "" : " [" + flag.otherwise + "]"));
}

std::string paragraphs(const std::string& text) {
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);)
    all += line.empty() || line.front() == ' ' ? line + "\n" : paragraph(line);
  return all;
}

}  // namespace

std::string help_of(const CLI::App* app, std::string name, CLI::AppFormatMode) {
  std::string text =
      paragraph(app->get_description()) + "\n" + Lines(0, kNarrowColumn).add("Usage: " + name + usage_of(*app)).str();
  const auto commands = app->get_subcommands({});
  if (!commands.empty()) text += "\nCommands:\n";
  for (const CLI::App* command : commands) text += row(command->get_name(), command->get_description());
  const std::vector<FlagRow> flags = flag_table(*app);
  for (const std::string& group : app->get_groups()) {
    std::string rows;
    for (const FlagRow& flag : flags)
      if (flag.group == group) rows += row_of(flag);
    if (!rows.empty()) text += "\n" + group + ":\n" + rows;
  }
  return text + (app->get_footer().empty() ? "" : "\n" + paragraphs(app->get_footer()));
}

}  // namespace wick::cli
