#include "wick/text/jinja/marked.h"

#include <algorithm>

namespace wick::jinja {

Marked marked(std::string bytes, bool is_given) {
  Marked made{std::move(bytes)};
  if (is_given && !made.bytes.empty()) made.given.emplace_back(0, made.bytes.size());
  return made;
}

std::span<const Run> runs_in(const Runs& runs, size_t from, size_t size) {
  const auto first = std::partition_point(runs.begin(), runs.end(), [&](const Run& run) { return run.second <= from; });
  const auto behind = std::partition_point(first, runs.end(), [&](const Run& run) { return run.first < from + size; });
  return {first, behind};
}

void add_runs(Budget& budget, Runs& runs, size_t at, const Runs& source, size_t from, size_t size) {
  const auto added = runs_in(source, from, size);
  if (added.empty()) return;
  budget.work(added.size_bytes());
  if (runs.size() + added.size() > runs.capacity()) {
    budget.room(2 * (runs.size() + added.size()) * sizeof(Run));
    runs.reserve(std::max(runs.size() + added.size(), 2 * runs.size()));
  }
  for (const auto& [first, behind] : added) {
    const size_t start = at + std::max(first, from) - from, end = at + std::min(behind, from + size) - from;
    if (!runs.empty() && runs.back().second == start)
      runs.back().second = end;
    else
      runs.emplace_back(start, end);
  }
}

}  // namespace wick::jinja
