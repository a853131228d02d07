// YAML files by way of libyaml, the parser within PyYAML, as trees of JSON; for the readers of this folder.
#pragma once

#include <string>
#include <string_view>

#include "wick/io/json.h"

namespace wick {

// One document with a mapping. Plain scalars are null, true or false, numbers or strings as PyYAML's safe loader takes
// them (YAML 1.1: yes is true), 1e-4 is a number too; other bases than ten are strings. Throws UsageError that names
// file and line, also for aliases, tags, a key given twice, and what nests more than 100 deep.
nlohmann::ordered_json parse_yaml(std::string_view text, const std::string& source);

}  // namespace wick
