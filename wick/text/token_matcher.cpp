#include "wick/text/token_matcher.h"

#include <algorithm>

namespace wick {

TokenMatcher::TokenMatcher(std::vector<std::pair<std::string, int32_t>> tokens) : tokens_(std::move(tokens)) {
  // char_traits compares bytes as unsigned, and of equal texts the first id is kept.
  std::sort(tokens_.begin(), tokens_.end());
  const auto same_text = [](const auto& a, const auto& b) { return a.first == b.first; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same_text), tokens_.end());
  starts_.assign(257, tokens_.size());
  for (size_t i = tokens_.size(); i-- > 0;) starts_[uint8_t(tokens_[i].first[0])] = i;
  for (size_t byte = 256; byte-- > 0;) starts_[byte] = std::min(starts_[byte], starts_[byte + 1]);
}

void TokenMatcher::narrow(size_t& first, size_t& last, size_t offset, char next) const {
  const auto byte_at = [&](const auto& token) { return uint8_t(token.first[offset]); };
  const auto begin = tokens_.begin() + ptrdiff_t(first), end = tokens_.begin() + ptrdiff_t(last);
  const auto lower = std::partition_point(begin, end, [&](const auto& t) { return byte_at(t) < uint8_t(next); });
  const auto upper = std::partition_point(lower, end, [&](const auto& t) { return byte_at(t) == uint8_t(next); });
  first = size_t(lower - tokens_.begin());
  last = size_t(upper - tokens_.begin());
}

}  // namespace wick
