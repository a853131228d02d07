#include "wick/text/unigram.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/text/unicode.h"

namespace wick {

Unigram::Unigram(const TokenizerSpec& spec) : sums_in_f32_(spec.sums_in_f32) {
  check(spec.unknown.has_value(), "{}: expected an unknown token, found none", spec.source);
  unknown_ = int32_t(*spec.unknown);
  std::vector<std::pair<std::string, int32_t>> pieces;
  std::unordered_set<std::string_view> texts;
  double lowest = std::numeric_limits<float>::max();
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const Token& token = spec.tokens[id];
    scores_.push_back(token.score);
    if (!token.is_piece) continue;
    check(texts.insert(token.text).second, "{}: the piece {} stands there twice", spec.source, quote(token.text));
    pieces.emplace_back(token.text, int32_t(id));
    lowest = std::min(lowest, token.score);
  }
  constexpr double kPenalty = 10;
  unknown_score_ = lowest - kPenalty;
  if (sums_in_f32_) unknown_score_ = float(unknown_score_);
  pieces_ = TokenMatcher(std::move(pieces));
}

void Unigram::encode(std::string_view text, std::vector<WordToken>& tokens) const {
  constexpr int64_t kNone = -1;
  struct Node {  // the best way to cut the text up to some place: its score, its last piece and where that starts
    double score = 0;
    int64_t start = kNone;
    int32_t id = 0;
  };
  std::vector<Node> best(text.size() + 1);
  const auto offer = [&](size_t start, size_t end, int32_t id, double score) {
    Node& node = best[end];
    score += best[start].score;
    if (sums_in_f32_) score = float(score);
    if (node.start == kNone || score > node.score) node = {score, int64_t(start), id};
  };
  for (size_t at = 0; at < text.size();) {
    const size_t character = utf8_length(text, at);
    bool is_known = false;
    pieces_.each(text, at, [&](int32_t id, size_t size) {
      offer(at, at + size, id, scores_[size_t(id)]);
      is_known = is_known || size == character;
    });
    if (!is_known) offer(at, at + character, unknown_, unknown_score_);
    at += character;
  }
  const size_t first = tokens.size();
  for (size_t end = text.size(); end > 0; end = size_t(best[end].start)) {
    const auto [_, start, id] = best[end];
    if (id == unknown_ && tokens.size() > first && tokens.back().id == unknown_)
      tokens.back().start = size_t(start);
    else
      tokens.push_back({id, size_t(start), end});
  }
  std::reverse(tokens.begin() + ptrdiff_t(first), tokens.end());
}

}  // namespace wick
