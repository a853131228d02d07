// docs/option-files.md, made from the tables.
#pragma once

#include <string>

namespace wick {

std::string option_files_page();

}  // namespace wick
