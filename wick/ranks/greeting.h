// The messages of a rank and rank 0 to each other until all have come: a Hello, an Answer that it is noted, one byte
// (so that a rank which waited for no answer, and comes again, is not taken for two), and an Answer once it is decided.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace wick {

constexpr char kHelloMagic[8] = {'w', 'i', 'c', 'k', 'r', 'a', 'n', 'k'};
constexpr char kAnswerMagic[8] = {'w', 'i', 'c', 'k', 'f', 'i', 'r', 's'};
constexpr uint32_t kGreetingVersion = 2;  // of greetings and frames

struct Hello {
  char magic[8];
  uint32_t version;  // all before this and itself never change
  uint32_t rank, count, unused;
  uint64_t run;    // as the id file has it; 0 without one
  char host[256];  // ends in a NUL
};
constexpr size_t kVersioned = offsetof(Hello, rank);  // bytes that every version has

enum class Verdict : uint32_t {
  noted,     // the text is rank 0's host
  complete,  // all have come
  refused,   // the text says why
  stranger,  // another run listens there
};

struct Answer {  // never changes
  char magic[8];
  Verdict verdict;
  char text[1012];  // ends in a NUL
};

template <size_t room>
void put_text(char (&to)[room], const std::string& text) {
  const size_t bytes = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), bytes);
  to[bytes] = '\0';
}

template <size_t room>
std::string text_of(const char (&from)[room]) {
  return std::string(from, strnlen(from, room));
}

}  // namespace wick
