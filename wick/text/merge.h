// The inner loop of byte-pair encoding, the same for every tokenizer: the symbols of a word, and the merge of a pair of
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace wick {

// A piece of a word of text.size() bytes, linked to its neighbours by index. A symbol that was merged into its left
// neighbour keeps its place but has no bytes.
struct Symbol {
  static constexpr int32_t kNone = -1;
  int32_t id, start, size, previous, next;
};

struct Merge {
  int32_t rank, id;  // the lowest rank is merged first; `id` is the merged token
};

// Appends a symbol behind the last one.
inline void push_symbol(std::vector<Symbol>& symbols, int32_t id, int32_t start, int32_t size) {
  const int32_t at = int32_t(symbols.size());
  if (at > 0) symbols.back().next = at;
  symbols.push_back({id, start, size, at - 1, Symbol::kNone});
}

// Merges the pair of lowest rank, the leftmost of equals, until none is left. `find(left, right)` gives the Merge of
// two neighbours if there is one. The queue holds every pair that came up, and pairs whose symbols have changed since
// are skipped: O(n log n) for n symbols. The remaining symbols are linked by `next`, from symbol 0.
template <class Find>
void merge_symbols(std::vector<Symbol>& symbols, const Find& find) {
  struct Candidate {
    int32_t rank, left, size, id;
    bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto at = [&](int32_t i) -> Symbol& { return symbols[size_t(i)]; };
  const auto consider = [&](int32_t i) {
    if (i == Symbol::kNone || at(i).next == Symbol::kNone) return;
    const Symbol &left = at(i), &right = at(left.next);
    if (const std::optional<Merge> merge = find(left, right))
      candidates.push({merge->rank, i, left.size + right.size, merge->id});
  };

  for (int32_t i = 0; i < int32_t(symbols.size()); ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = at(best.left);
    if (left.size == 0 || left.next == Symbol::kNone || left.size + at(left.next).size != best.size) continue;
    Symbol& right = at(left.next);
    left = {best.id, left.start, best.size, left.previous, right.next};
    if (right.next != Symbol::kNone) at(right.next).previous = best.left;
    right.size = 0;
    consider(left.previous);
    consider(best.left);
  }
}

// (left id, right id) -> the merged id and its rank.
class MergeTable {
 public:
  void reserve(size_t count) { merges_.reserve(count); }
  // False if the pair was there already: it then keeps its merge.
  bool add(int32_t left, int32_t right, Merge merge) { return merges_.emplace(key(left, right), merge).second; }
  std::optional<Merge> find(int32_t left, int32_t right) const {
    const auto found = merges_.find(key(left, right));
    return found == merges_.end() ? std::nullopt : std::optional(found->second);
  }
  size_t size() const { return merges_.size(); }

 private:
  static uint64_t key(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace wick
