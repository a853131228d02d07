// Runs `wick` as a shell would.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "io/files.h"
#include "source_dir.h"

namespace wick {

inline const std::filesystem::path kGolden = test::source_dir() / "tests/golden";
inline const std::string kModel = (kGolden / "sdxl").string();

struct Outcome {
  int code;  // the shell's: 128 + N for a program that signal N killed
  std::string out, err;
};

// The program under test; WICK_BINARY is one of a build that was carried elsewhere.
inline std::string wick_binary() {
  const char* const elsewhere = std::getenv("WICK_BINARY");
  return elsewhere ? elsewhere : WICK_BINARY;
}

// `arguments` is shell text, after `prefix`, which may set limits or variables.
inline Outcome run_wick(const std::string& arguments, const std::string& prefix = "") {
  const TemporaryDirectory folder;
  const std::string out = (folder / "out").string(), err = (folder / "err").string();
  // One thread: these models are too small for more, and several tests run at once.
  const std::string command = "export OMP_NUM_THREADS=1; " + prefix + " '" + wick_binary() + "' " + arguments;
  const int status = std::system(("( " + command + " ) >'" + out + "' 2>'" + err + "'").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_plain(out), read_plain(err)};
}

// A wrong input: a failing code, and one line on stderr that holds all of `words`.
inline void expect_one_line(const Outcome& outcome, const std::vector<std::string>& words) {
  EXPECT_GE(outcome.code, 1);
  EXPECT_LE(outcome.code, 127);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with('\n')) << outcome.err;
  for (const std::string& word : words)
    EXPECT_NE(outcome.err.find(word), std::string::npos) << "expected '" << word << "' in: " << outcome.err;
}

}  // namespace wick
