// The use of a key of another trainer's option file, as tests compare it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "wick/train/foreign/option_file.h"

namespace wick::test {

// "honoured: rank = 8", "idle: ...", "empty: ..." or "refused: ..."; empty if the file lacks the key.
inline std::string told(const ForeignConfig& read, std::string_view key) {
  const auto found = std::ranges::find(read.keys, key, &KeyReport::key);
  if (found == read.keys.end()) return "";
  constexpr const char* kUses[] = {"honoured", "idle", "empty", "refused"};
  return fmt::format("{}: {}", kUses[size_t(found->use)], found->told);
}

}  // namespace wick::test
