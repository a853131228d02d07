#include "flag_table.h"

#include <algorithm>
#include <sstream>

namespace wick::cli {
namespace {

FlagRow row_of(const CLI::Option& option) {
  FlagRow row{.names = {},
              .value = option.get_type_size() == 0 ? "" : option.get_type_name(),
              .text = option.get_description(),
              .otherwise = {},
              .group = option.get_group(),
              .is_required = option.get_required(),
              .takes_several = takes_several(option)};
  for (const std::string& letter : option.get_snames()) row.names.push_back("-" + letter);
  for (const std::string& word : option.get_lnames()) row.names.push_back("--" + word);
  if (const size_t bracket = row.text.rfind(" ["); row.text.ends_with(']') && bracket != row.text.npos) {
    row.otherwise = row.text.substr(bracket + 2, row.text.size() - bracket - 3);
    row.text.erase(bracket);
  }
  return row;
}

}  // namespace

bool takes_several(const CLI::Option& option) {
  return option.get_items_expected_max() > 1 && option.get_allow_extra_args();
}

std::vector<FlagRow> flag_table(const CLI::App& command) {
  std::vector<FlagRow> rows;
  for (const CLI::Option* option : command.get_options())
    if (!option->get_group().empty()) rows.push_back(row_of(*option));
  return rows;
}

std::string usage_of(const CLI::App& command) {
  if (!command.get_parent()) return " COMMAND [FLAGS]";
  std::string flags, places;
  bool has_more = false;
  for (const FlagRow& row : flag_table(command)) {
    if (row.is_positional())
      places += row.is_required ? " " + row.value : " [" + row.value + "]";
    else if (row.is_required)
      flags += " " + row.names.front() + " " + row.value;
    else
      has_more = true;
  }
  return flags + places + (has_more ? " [FLAGS]" : "");
}

ValueKinds kinds_of(const std::string& value) {
  ValueKinds kinds;
  std::string apart = value;
  std::ranges::replace(apart, '|', ' ');
  std::istringstream alternatives(apart);
  for (std::string one; alternatives >> one;) {
    const bool has_capital = std::ranges::any_of(one, [](char c) { return c >= 'A' && c <= 'Z'; });
    if (!has_capital && one != "...") kinds.words.push_back(one);
    kinds.files |= one.starts_with("FILE") || one == "PATH" || one == "MODEL";
    kinds.folders |= one == "FOLDER";
    kinds.models |= one == "MODEL";
    kinds.commands |= one == "COMMAND";
  }
  return kinds;
}

void begin_group(CLI::App& command, const std::string& name) { command.option_defaults()->group(name); }

}  // namespace wick::cli
