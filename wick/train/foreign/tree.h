// An option file as a tree, whatever its syntax; for the readers of this folder.
#pragma once

#include <filesystem>

#include "wick/io/json.h"

namespace wick {

enum class OptionSyntax { toml, json, yaml, script };       // the last: a script of a shell, see command.h
OptionSyntax syntax_of(const std::filesystem::path& file);  // by its name's ending: TOML unless that is another's

inline constexpr size_t kMaxOptions = 4096;  // of a table

// An object. Dates and times of TOML are strings. Throws Error, or UsageError, that names file and line.
nlohmann::ordered_json read_option_tree(const std::filesystem::path& file);

// A value as the words that a flag would have; the items of lists within lists one after the other. Null has none.
std::vector<std::string> words_of(const nlohmann::ordered_json& value);

}  // namespace wick
