// A directory for one test, and the check that an error is one clear line.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>

#include "wick/core/error.h"

namespace wick {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "wick-io-XXXXXX").string();
    if (!mkdtemp(pattern.data())) std::abort();
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  size_t entries() const {
    return size_t(std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator{}));
  }

 private:
  std::filesystem::path path_;
};

// Uses the standard library, so that a test does not judge Wick's files by Wick's own means.
inline void write_plain(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}
inline std::string read_plain(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs `action`, which must throw Error with one line that contains all of `parts`.
template <class Action>
void expect_error(Action&& action, std::initializer_list<std::string_view> parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    for (std::string_view part : parts) EXPECT_NE(message.find(part), message.npos) << message << "\nlacks " << part;
    return;
  }
  ADD_FAILURE() << "no error, expected one about " << (parts.size() ? *parts.begin() : "");
}

}  // namespace wick
