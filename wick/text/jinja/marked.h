// Texts that know which of their bytes are given: from the strings of a conversation, which may hold anything, and not
// from the template. Control tokens are looked for outside of these.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "wick/text/jinja/limits.h"

namespace wick::jinja {

using Run = std::pair<size_t, size_t>;  // the first byte, and the one behind the last
using Runs = std::vector<Run>;          // in order; none is empty, none touches another

struct Marked {
  std::string bytes;
  Runs given{};

  bool has_given() const { return !given.empty(); }
  size_t memory() const { return bytes.size() + given.size() * sizeof(Run); }
};

// All of a text is given, or nothing.
Marked marked(std::string bytes, bool is_given);

// Those that reach into a part of their text.
std::span<const Run> runs_in(const Runs& runs, size_t from, size_t size);

// Adds what is given of a part of a text, which is going to stand at `at`, behind all the runs that there are.
void add_runs(Budget& budget, Runs& runs, size_t at, const Runs& source, size_t from, size_t size);

}  // namespace wick::jinja
