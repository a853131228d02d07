// Ten thousand lists of ids in the goldens: a hash for every ten (tools/golden/llm_tokenizers.py).
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wick::test {

class Fnv1a {
 public:
  void add(std::string_view bytes) {
    for (char byte : bytes) value_ = (value_ ^ uint8_t(byte)) * 0x01000193u;
  }
  void add(const std::vector<int64_t>& ids) {
    for (int64_t id : ids) add_id(int32_t(id));
    add_id(-1);
  }
  std::string hex() const { return fmt::format("{:08x}", value_); }

 private:
  void add_id(int32_t id) {
    for (int shift = 0; shift < 32; shift += 8) value_ = (value_ ^ (uint32_t(id) >> shift & 0xff)) * 0x01000193u;
  }
  uint32_t value_ = 0x811c9dc5;
};

// The number of groups of ten lines that differ from their hash, and the first of them; empty if there is none.
// `add(line, hash)` adds the ids of a line.
template <class Add>
std::string differences(const std::string& golden, const std::vector<std::string>& lines, const Add& add) {
  const size_t groups = lines.size() / 10;
  if (golden.size() != groups * 8) return fmt::format("{} lines for {} characters", lines.size(), golden.size());
  size_t count = 0, first = 0;
  for (size_t group = 0; group < groups; ++group) {
    Fnv1a hash;
    for (size_t i = 0; i < 10; ++i) add(lines[group * 10 + i], hash);
    if (hash.hex() == golden.substr(group * 8, 8)) continue;
    if (count++ == 0) first = group;
  }
  return count == 0 ? "" : fmt::format("{} of {}, first lines {}0 to {}9", count, groups, first, first);
}

}  // namespace wick::test
