// Finds tokens that are spelt out in a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace wick {

class TokenMatcher {
 public:
  static constexpr int32_t kNone = -1;

  TokenMatcher() = default;
  explicit TokenMatcher(std::vector<std::pair<std::string, int32_t>> tokens);  // text, not empty, and a value from 0 on

  bool empty() const { return tokens_.empty(); }

  // The longest token at `at` in `text` for which `accepts(value)` holds; kNone and 0 if there is none.
  struct Match {
    int32_t value = kNone;
    size_t size = 0;
  };
  template <class Accepts>
  Match longest(std::string_view text, size_t at, const Accepts& accepts) const {
    Match best;
    each(text, at, [&](int32_t value, size_t size) {
      if (accepts(value)) best = {value, size};
    });
    return best;
  }

  // Calls found(value, size) for every token at `at` in `text`, the shortest first.
  template <class Found>
  void each(std::string_view text, size_t at, const Found& found) const {
    auto [first, last] = range(uint8_t(text[at]));
    // The tokens are sorted: those that match the text so far are adjacent, and the shortest comes first.
    for (size_t size = 1; first != last; ++size) {
      if (tokens_[first].first.size() == size) found(tokens_[first++].second, size);
      if (at + size == text.size()) break;
      narrow(first, last, size, text[at + size]);
    }
  }

 private:
  std::pair<size_t, size_t> range(uint8_t byte) const {
    return tokens_.empty() ? std::pair<size_t, size_t>{} : std::pair{starts_[byte], starts_[byte + 1u]};
  }
  void narrow(size_t& first, size_t& last, size_t offset, char next) const;

  std::vector<std::pair<std::string, int32_t>> tokens_;  // sorted by bytes
  std::vector<size_t> starts_;                           // index of the first token with each first byte
};

}  // namespace wick
