// Values that no program writes, in every field of a JSON file, and commands that are run on them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "apps/wick/program.h"

namespace wick::test {

inline std::string long_list() {
  std::string list = "[1";
  for (int i = 0; i < 100'000; ++i) list += ",1";
  return list + "]";
}

// JSON texts. A field is an integer, a number, a text, a list or an object: each has some that it cannot be.
inline const std::vector<std::string>& hostile_values() {
  static const std::vector<std::string> all = {"0",
                                               "1000000000",
                                               "-1",
                                               "1",
                                               "2",
                                               "7",
                                               "65536",
                                               "2147483647",
                                               "2147483648",
                                               "9223372036854775807",
                                               "9223372036854775808",
                                               "-9223372036854775808",
                                               "18446744073709551616",
                                               "1e308",
                                               "-1e308",
                                               "1e-308",
                                               "0.5",
                                               "1e999",
                                               "NaN",
                                               "Infinity",
                                               "-Infinity",
                                               "true",
                                               "false",
                                               "null",
                                               "\"\"",
                                               "\"1\"",
                                               "\"x\\n\\u001b[31m\"",
                                               "[]",
                                               "[0]",
                                               "[1000000000]",
                                               "[-1, 1000000000, 1e308]",
                                               "[null]",
                                               "[[1, 2], [3]]",
                                               "{}",
                                               "{\"x\": 1000000000}",
                                               "\"" + std::string(1 << 20, 'x') + "\"",
                                               long_list(),
                                               std::string(5000, '[') + std::string(5000, ']')};
  return all;
}

// Where the fields of a value are: of lists and objects with many members (vocabularies) the first two and the last.
inline void add_fields(const nlohmann::ordered_json& value, const nlohmann::ordered_json::json_pointer& at,
                       std::vector<nlohmann::ordered_json::json_pointer>& all) {
  constexpr size_t kMany = 100;
  if (!at.empty()) all.push_back(at);
  if (!value.is_structured()) return;
  size_t i = 0;
  for (const auto& [key, member] : value.items()) {
    const bool is_looked_at = value.size() <= kMany || i < 2 || i + 1 == value.size();
    if (is_looked_at) add_fields(member, value.is_array() ? at / i : at / key, all);
    ++i;
  }
}

// The file with one field replaced.
inline std::string with_value(nlohmann::ordered_json file, const nlohmann::ordered_json::json_pointer& at,
                              const std::string& value) {
  const std::string mark = "the field that is replaced";
  file[at] = mark;
  std::string text = file.dump();
  const size_t place = text.find('"' + mark + '"');
  return text.replace(place, mark.size() + 2, value);
}

struct Ended {
  int code = 0;     // of the shell: 128 + N for a command that signal N ended
  std::string out;  // both streams, the errors last
};

// Runs `action`, which returns an exit code, in a process of its own, though in this program: a crash, too much time or
// too much memory ends that process alone. No thread has been started here before.
template <class Action>
Ended run_bounded(const Action& action) {
  constexpr rlim_t kMemory = rlim_t{4} << 30, kSeconds = 20;
  const std::array<int, 2> streams = {memfd_create("output", MFD_CLOEXEC), memfd_create("errors", MFD_CLOEXEC)};
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit memory{kMemory, kMemory}, seconds{kSeconds, kSeconds}, core{0, 0};
#ifndef __SANITIZE_ADDRESS__  // whose shadow takes all of the address space
    ::setrlimit(RLIMIT_AS, &memory);
#endif
    ::setrlimit(RLIMIT_CPU, &seconds);
    ::setrlimit(RLIMIT_CORE, &core);
    ::alarm(10 * kSeconds);
    ::dup2(streams[0], STDOUT_FILENO);
    ::dup2(streams[1], STDERR_FILENO);
    const int code = action();
    std::fflush(stdout);
    std::_Exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  Ended ended{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), ""};
  std::array<char, 4096> bytes;
  for (const int stream : streams) {
    off_t at = 0;
    for (ssize_t n; (n = ::pread(stream, bytes.data(), bytes.size(), at)) > 0; at += n)
      ended.out.append(bytes.data(), size_t(n));
    ::close(stream);
  }
  return ended;
}

// A command, word by word.
inline Ended run_command(const std::vector<std::string>& words) {
  return run_bounded([&] {
    std::vector<std::string> all = {"wick"};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& word : all) argv.push_back(word.data());
    return cli::run_program(int(argv.size()), argv.data());
  });
}

// It ended by itself, and if it failed with one line that says why, without "unexpected", terminal control or a number
// that was computed from nonsense.
inline void expect_survived(const Ended& ended) {
  EXPECT_LE(ended.code, 2) << ended.out;
  if (ended.code == 0) return;
  const size_t line = ended.out.rfind("wick: ");
  ASSERT_NE(line, std::string::npos) << ended.out;
  const std::string message = ended.out.substr(line);
  EXPECT_TRUE(message.find('\n') + 1 == message.size()) << message;
  EXPECT_LT(message.size(), 4000u) << message;
  EXPECT_EQ(message.find("unexpected failure"), std::string::npos) << message;
  EXPECT_EQ(message.find("out of memory"), std::string::npos) << message;
  for (const unsigned char c : message.substr(0, message.size() - 1)) EXPECT_GE(c, ' ') << message;
}

}  // namespace wick::test
