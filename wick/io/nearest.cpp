#include "wick/io/nearest.h"

#include <algorithm>
#include <cstddef>

namespace wick {
namespace {

// The distance of Damerau and Levenshtein in which no part is changed twice ("optimal string alignment").
size_t slips(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string_view without_dashes(std::string_view name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

bool begins_or_ends_with(std::string_view whole, std::string_view part) {
  return whole.starts_with(part) || whole.ends_with(part);
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64, kTelling = 2;  // a part of fewer characters tells nothing
  word = without_dashes(word);
  if (word.size() > kLongest) return {};
  std::string best;
  size_t fewest = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names)
    if (const size_t n = slips(word, without_dashes(name)); n < fewest) {
      best = name;
      fewest = n;
    }
  if (!best.empty()) return best;
  for (const std::string& name : names) {
    const std::string_view plain = without_dashes(name);
    if (std::min(word.size(), plain.size()) >= kTelling &&
        (begins_or_ends_with(plain, word) || begins_or_ends_with(word, plain)))
      return name;
  }
  return {};
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest(word, names);
  return name.empty() ? "" : "; did you mean " + name + "?";
}

}  // namespace wick
