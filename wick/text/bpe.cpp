#include "wick/text/bpe.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "wick/core/error.h"
#include "wick/text/unicode.h"

namespace wick {

Bpe::Bpe(const TokenizerSpec& spec, const std::vector<std::string>& spellings) : spec_(spec) {
  std::vector<std::pair<std::string, int32_t>> user_defined;
  pieces_.reserve(spec.tokens.size());
  byte_ids_.fill(Symbol::kNone);
  for (int32_t id = 0; id < int32_t(spec.tokens.size()); ++id) {
    const Token& token = spec.tokens[size_t(id)];
    const std::string& spelling = spellings[size_t(id)];
    if (!token.is_piece || spelling.empty()) continue;
    pieces_.emplace(spelling, id);
    longest_ = std::max(longest_, spelling.size());
    if (spec.by_scores && token.type == TokenType::kUserDefined) user_defined.emplace_back(spelling, id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, char(byte)), name = fmt::format("<0x{:02X}>", byte);
    if (spec.is_byte_level) byte_ids_[size_t(byte)] = find(one);
    if (spec.byte_fallback) byte_ids_[size_t(byte)] = find(name);
  }
  if (spec.byte_fallback && spec.by_scores) {
    // Bytes are no pieces: text that spells "<0x0A>" is not that byte.
    for (int32_t id = 0; id < int32_t(spec.tokens.size()); ++id)
      if (spec.tokens[size_t(id)].type == TokenType::kByte) pieces_.erase(spec.tokens[size_t(id)].text);
  }
  user_defined_ = TokenMatcher(std::move(user_defined));
  cuts_at_spaces_ = !spec.is_byte_level && pieces_end_at_spaces();
  if (spec.by_scores) rank_scores();
  merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const MergeRule& rule = spec.merges[rank];
    merges_.add(rule.left, rule.right, {int32_t(rank), rule.merged});
  }
}

int32_t Bpe::find(std::string_view piece) const {
  const auto found = pieces_.find(piece);
  return found == pieces_.end() ? Symbol::kNone : found->second;
}

// Whether U+2581 is a piece, and every other piece has it only at its beginning, alone or repeated.
bool Bpe::pieces_end_at_spaces() const {
  const auto goes_on = [](std::string_view piece) {
    while (piece.starts_with(kSpacePiece)) piece.remove_prefix(kSpacePiece.size());
    return piece.find(kSpacePiece) != piece.npos;
  };
  return find(kSpacePiece) != Symbol::kNone &&
         std::none_of(pieces_.begin(), pieces_.end(), [&](const auto& entry) { return goes_on(entry.first); });
}

// Equal scores have equal ranks: the leftmost of such pairs is merged first.
void Bpe::rank_scores() {
  std::vector<float> scores;
  for (const Token& token : spec_.tokens) scores.push_back(token.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (const Token& token : spec_.tokens) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), token.score, std::greater<>());
    ranks_.push_back(int32_t(at - scores.begin()));
  }
}

void Bpe::encode(std::string_view word, std::vector<WordToken>& tokens) const {
  check(word.size() <= size_t(std::numeric_limits<int32_t>::max()), "text: too long to be one word; cut it up");
  if (!cuts_at_spaces_ || spec_.ignore_merges) return encode_part(word, 0, word.size(), tokens);
  for (size_t start = 0; start < word.size();) {
    size_t end = start;
    while (word.substr(end).starts_with(kSpacePiece)) end += kSpacePiece.size();
    end = std::min(word.find(kSpacePiece, end), word.size());
    encode_part(word, start, end, tokens);
    start = end;
  }
}

void Bpe::encode_part(std::string_view word, size_t start, size_t end, std::vector<WordToken>& tokens) const {
  if (start == end) return;
  const size_t first = tokens.size();
  const std::string_view part = word.substr(start, end - start);
  spec_.by_scores ? encode_by_scores(part, tokens) : encode_by_merges(part, tokens);
  for (size_t i = first; i < tokens.size(); ++i) tokens[i].start += start, tokens[i].end += start;
}

void Bpe::encode_by_merges(std::string_view word, std::vector<WordToken>& tokens) const {
  if (spec_.ignore_merges) {
    if (const int32_t id = find(word); id != Symbol::kNone) {
      tokens.push_back({id, 0, word.size()});
      return;
    }
  }
  std::vector<Symbol> symbols = symbols_to_merge(word);
  if (symbols.empty()) return;
  merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) { return merges_.find(left.id, right.id); });
  for (int32_t i = 0; i != Symbol::kNone; i = symbols[size_t(i)].next) {
    const Symbol& symbol = symbols[size_t(i)];
    tokens.push_back({symbol.id, size_t(symbol.start), size_t(symbol.start + symbol.size)});
  }
}

// Follows HF tokenizers' BPE, which also holds unknown characters back until a known one comes.
std::vector<Symbol> Bpe::symbols_to_merge(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  int32_t unknown_start = 0, unknown_size = 0;
  const auto flush_unknown = [&] {
    if (unknown_size > 0) push_symbol(symbols, int32_t(*spec_.unknown), unknown_start, unknown_size);
    unknown_size = 0;
  };
  for (size_t at = 0; at < word.size();) {
    const size_t size = spec_.is_byte_level ? 1 : utf8_length(word, at);
    const std::string_view character = word.substr(at, size);
    const int32_t start = int32_t(at);
    const int32_t id = spec_.is_byte_level ? byte_ids_[uint8_t(word[at])] : find(character);
    at += size;
    if (id != Symbol::kNone) {
      flush_unknown();
      push_symbol(symbols, id, start, int32_t(size));
    } else if (!push_bytes(character, start, symbols) && spec_.unknown) {
      if (!spec_.fuse_unknown) flush_unknown();
      if (unknown_size == 0) unknown_start = start;
      unknown_size += int32_t(size);
    }
  }
  flush_unknown();
  return symbols;
}

// False if the vocabulary lacks one of the bytes: then none of them stands for the character.
bool Bpe::push_bytes(std::string_view character, int32_t start, std::vector<Symbol>& symbols) const {
  const auto id_of = [&](char byte) { return byte_ids_[uint8_t(byte)]; };
  const auto has_id = [&](char byte) { return id_of(byte) != Symbol::kNone; };
  if (!spec_.byte_fallback || !std::all_of(character.begin(), character.end(), has_id)) return false;
  for (char byte : character) push_symbol(symbols, id_of(byte), start++, 1);
  return true;
}

void Bpe::encode_by_scores(std::string_view word, std::vector<WordToken>& tokens) const {
  constexpr int32_t kFree = 0, kFrozen = 1;  // Symbol::id: user-defined pieces are not merged
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t at = 0; at < word.size();) {
    const auto fixed = user_defined_.longest(word, at, [](int32_t) { return true; });
    const size_t size = fixed.size > 0 ? fixed.size : utf8_length(word, at);
    push_symbol(symbols, fixed.size > 0 ? kFrozen : kFree, int32_t(at), int32_t(size));
    at += size;
  }
  Pieces split;
  merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
    const size_t size = size_t(left.size) + size_t(right.size);
    if (left.id == kFrozen || right.id == kFrozen || size > longest_) return std::nullopt;
    const std::string_view both = word.substr(size_t(left.start), size);
    const int32_t id = find(both);
    if (id == Symbol::kNone) return std::nullopt;
    if (spec_.tokens[size_t(id)].type == TokenType::kUnused) split[both] = size_t(left.size);
    return Merge{ranks_[size_t(id)], kFree};
  });
  for (int32_t i = 0; i != Symbol::kNone; i = symbols[size_t(i)].next) {
    const Symbol& symbol = symbols[size_t(i)];
    emit_piece(word.substr(size_t(symbol.start), size_t(symbol.size)), size_t(symbol.start), split, tokens);
  }
}

void Bpe::emit_piece(std::string_view piece, size_t start, const Pieces& split, std::vector<WordToken>& tokens) const {
  const int32_t id = find(piece);
  if (id == Symbol::kNone) return emit_unknown(piece, start, tokens);
  if (spec_.tokens[size_t(id)].type == TokenType::kUnused) {
    if (const auto left = split.find(piece); left != split.end()) {
      emit_piece(piece.substr(0, left->second), start, split, tokens);
      emit_piece(piece.substr(left->second), start + left->second, split, tokens);
      return;
    }
  }
  tokens.push_back({id, start, start + piece.size()});
}

// Unknown tokens side by side are one, but not where bytes may stand for a character.
void Bpe::emit_unknown(std::string_view piece, size_t start, std::vector<WordToken>& tokens) const {
  const size_t end = start + piece.size();
  std::vector<Symbol> bytes;
  if (push_bytes(piece, 0, bytes)) {
    for (const Symbol& byte : bytes) tokens.push_back({byte.id, start, start + 1}), ++start;
  } else if (spec_.unknown) {
    const bool goes_on = !spec_.byte_fallback && start > 0 && tokens.back().id == *spec_.unknown;
    if (goes_on)
      tokens.back().end = end;
    else
      tokens.push_back({*spec_.unknown, start, end});
  }
}

}  // namespace wick
