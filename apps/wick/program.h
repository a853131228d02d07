// The program but for main(): a command from its words to its exit code.
#pragma once

namespace wick::cli {

inline constexpr int kFailed = 1, kWrongUsage = 2;

// Runs the command of main()'s arguments. A failure becomes one line on standard error; the code is kWrongUsage where
// the command line, or a file of settings that stands for one, is wrong in itself, kFailed for everything else.
int run_program(int argc, char** argv);

// 0, or the exit code of output that could not be written.
int flush_output();

}  // namespace wick::cli
