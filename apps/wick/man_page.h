// Man pages in roff, of the same tables as --help.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace wick::cli {

std::string man_page_name(const CLI::App& command);  // "wick", for the program itself, or "wick-train"

// The page of section 1 of a command, or of the program itself.
std::string man_page(const CLI::App& command);

}  // namespace wick::cli
