// Ten thousand odd lines of text, as tools/golden/llm_lines.py makes them from the same file of fragments.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "source_dir.h"

namespace wick::test {

class Lines {
 public:
  static constexpr uint64_t kCount = 10'000;

  static std::vector<std::string> all() {
    const Lines maker;
    std::vector<std::string> lines;
    for (uint64_t i = 0; i < kCount; ++i) lines.push_back(maker.line(i));
    return lines;
  }

  // Knuth's 64-bit linear congruential generator; the upper 31 bits count.
  class Draw {
   public:
    explicit Draw(uint64_t line) : state_(line * 0x9e3779b97f4a7c15u + 0x1234567u) {}
    uint64_t below(uint64_t n) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      return (state_ >> 33) % n;
    }

   private:
    uint64_t state_;
  };

 private:
  Lines() : json_(nlohmann::json::parse(std::ifstream(source_dir() / "tests/golden/tokenizers/fragments.json"))) {}

  std::string line(uint64_t index) const {
    Draw draw(index);
    draw.below(2);
    const auto &groups = json_.at("groups"), &ranges = json_.at("ranges"), &invalid = json_.at("invalid");
    std::string out;
    const uint64_t pieces = 1 + draw.below(20);
    for (uint64_t piece = 0; piece < pieces; ++piece) {
      const uint64_t kind = draw.below(groups.size() + 2);
      if (kind < groups.size()) {
        out += groups[kind][draw.below(groups[kind].size())].get_ref<const std::string&>();
      } else if (kind == groups.size()) {
        const auto& range = ranges[draw.below(ranges.size())];
        const uint64_t first = range[0], last = range[1], count = 1 + draw.below(4);
        for (uint64_t i = 0; i < count; ++i) append_utf8(out, uint32_t(first + draw.below(last - first + 1)));
      } else if (index % 8 == 7) {
        const std::string hex = invalid[draw.below(invalid.size())];
        for (size_t i = 0; i < hex.size(); i += 2) out += char(std::stoi(hex.substr(i, 2), nullptr, 16));
      }
      if (draw.below(2) == 0) out += " ";
    }
    return out;
  }

  static void append_utf8(std::string& out, uint32_t c) {
    if (c < 0x80) {
      out += char(c);
    } else if (c < 0x800) {
      out += {char(0xc0 | c >> 6), char(0x80 | (c & 0x3f))};
    } else if (c < 0x10000) {
      out += {char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 0x3f)), char(0x80 | (c & 0x3f))};
    } else {
      out +=
          {char(0xf0 | c >> 18), char(0x80 | (c >> 12 & 0x3f)), char(0x80 | (c >> 6 & 0x3f)), char(0x80 | (c & 0x3f))};
    }
  }

  nlohmann::json json_;
};

}  // namespace wick::test
