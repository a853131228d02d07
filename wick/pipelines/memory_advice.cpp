#include "wick/pipelines/memory_advice.h"

#include <fmt/format.h>

#include <utility>

#include "wick/core/error.h"
#include "wick/core/memory.h"

namespace wick {
namespace {

std::optional<Fitting> tried(const MemoryChange& change) {
  try {
    return change();
  } catch (const Error&) {  // weights that have no such form, or a picture that the model cannot draw
    return {};
  }
}

}  // namespace

std::optional<Fitting> if_fits(std::string flags, size_t total, size_t room) {
  return total <= room ? std::optional(Fitting{std::move(flags), total}) : std::nullopt;
}

MemoryChange first_that_fits(std::vector<MemoryChange> changes) {
  return [changes = std::move(changes)]() -> std::optional<Fitting> {
    for (const MemoryChange& change : changes)
      if (auto found = tried(change)) return found;
    return {};
  };
}

std::string memory_advice(const std::vector<MemoryChange>& alone, const std::vector<MemoryChange>& together) {
  std::string text;
  const auto add = [&](const Fitting& f) {
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", f.flags, text.empty() ? "would need " : "",
                        readable_bytes(f.total));
  };
  for (const MemoryChange& change : alone)
    if (const auto found = tried(change)) add(*found);
  if (text.empty())
    if (const auto found = first_that_fits(together)()) add(*found);
  return text.empty() ? "expected a smaller model, or a device with more memory" : text;
}

int64_t most_that_fits(int64_t low, int64_t high, const std::function<bool(int64_t)>& fits) {
  if (low > high || !fits(low)) return 0;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace wick
