// Lines on standard error.
#pragma once

#include <string>

namespace wick::cli {

// "wick: MESSAGE", as one line without terminal control. Returns the code, for the end of the program.
int report(int code, std::string message);

}  // namespace wick::cli
