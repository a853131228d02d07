#include "man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "flag_table.h"

namespace wick::cli {
namespace {

// The character that begins at text[at], which is moved behind it.
uint32_t next_character(const std::string& text, size_t& at) {
  const uint8_t first = uint8_t(text[at++]);
  uint32_t character = first < 0x80 ? first : first < 0xE0 ? first & 0x1F : first < 0xF0 ? first & 0x0F : first & 0x07;
  for (; at < text.size() && (uint8_t(text[at]) & 0xC0) == 0x80; ++at)
    character = character << 6 | (uint8_t(text[at]) & 0x3F);
  return character;
}

// Text that roff shows as it is here: no request, and no dash or quote that is made more beautiful.
std::string roff(const std::string& text) {
  std::string escaped = text.starts_with('.') ? "\\&" : "";
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_character(text, at);
    switch (c) {
      case '\\':
        escaped += "\\e";
        break;
      case '-':
        escaped += "\\-";
        break;
      case '\'':
        escaped += "\\(aq";
        break;
      case '`':
        escaped += "\\(ga";
        break;
      case '^':
        escaped += "\\(ha";
        break;
      case '~':
        escaped += "\\(ti";
        break;
      default:
        escaped += c < 0x80 ? std::string(1, char(c)) : fmt::format("\\[u{:04X}]", c);
    }
  }
  return escaped;
}

std::string entry(const std::string& head, const std::string& text) {
  return ".TP\n" + head + "\n" + roff(text) + "\n";
}

std::string entry_of(const FlagRow& row) {
  std::string head;
  for (const std::string& name : row.names) head += (head.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  if (!row.value.empty()) head += (head.empty() ? "\\fI" : " \\fI") + roff(row.value) + "\\fR";
  return entry(head, row.text + (row.otherwise.empty() ? "" : " [" + row.otherwise + "]"));
}

std::string options(const CLI::App& command) {
  const std::vector<FlagRow> rows = flag_table(command);
  std::string text = rows.empty() ? "" : ".SH OPTIONS\n";
  for (const std::string& group : command.get_groups()) {
    const auto is_of_group = [&](const FlagRow& row) { return row.group == group; };
    if (std::ranges::any_of(rows, is_of_group)) text += ".SS \"" + roff(group) + "\"\n";
    for (const FlagRow& row : rows)
      if (is_of_group(row)) text += entry_of(row);
  }
  return text;
}

// A footer's paragraphs, blocks of lines that begin with a space, and examples.
std::string notes(const std::string& footer) {
  std::istringstream lines(footer);
  std::string text = footer.starts_with("Examples:") ? "" : ".SH NOTES\n";
  bool in_block = false;
  for (std::string line; std::getline(lines, line);) {
    if (const bool begins = line.starts_with(' '); begins != in_block) {
      text += begins ? ".EX\n" : ".EE\n";
      in_block = begins;
    }
    text += line.empty() ? ".PP" : line == "Examples:" ? ".SH EXAMPLES" : roff(line);
    text += "\n";
  }
  // A paragraph needs text, which no heading is.
  const size_t empty = text.find(".PP\n.SH");
  if (empty != text.npos) text.erase(empty, 4);
  return text + (in_block ? ".EE\n" : "");
}

}  // namespace

std::string man_page_name(const CLI::App& command) {
  return command.get_parent() ? "wick-" + command.get_name() : command.get_name();
}

std::string man_page(const CLI::App& command) {
  const std::string name = roff(man_page_name(command)),
                    called = command.get_parent() ? "wick " + command.get_name() : "wick";
  std::string title = name;
  std::ranges::transform(title, title.begin(), [](char c) { return 'a' <= c && c <= 'z' ? char(c - 'a' + 'A') : c; });
  std::string text = fmt::format(".TH {} 1 \"\" \"wick {}\" \"Wick\"\n.nh\n.ad l\n", title, WICK_VERSION);
  text += ".SH NAME\n" + name + " \\- " + roff(command.get_description()) + "\n";
  text += ".SH SYNOPSIS\n\\fB" + roff(called) + "\\fR" + roff(usage_of(command)) + "\n";
  const auto commands = command.get_subcommands({});
  if (!commands.empty()) text += ".SH COMMANDS\n";
  for (const CLI::App* one : commands)
    text += entry("\\fB" + roff(man_page_name(*one)) + "\\fR(1)", one->get_description());
  text += options(command) + notes(command.get_footer());
  if (command.get_parent()) text += ".SH SEE ALSO\n\\fBwick\\fR(1)\n";
  return text;
}

}  // namespace wick::cli
