// Arguments of benchmarks that measure fixed rows. One that none of them knows is an error: another case would be
// measured than was asked for.
#pragma once

#include <fmt/format.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "wick/core/error.h"

namespace wick::bench {

// Names of the rows that are wanted, or parts of names; all rows without any.
class RowNames {
 public:
  explicit RowNames(std::vector<std::string> parts)
      : parts_(std::move(parts)), unknown_(parts_.begin(), parts_.end()) {}

  bool wanted(const std::string& row) {
    bool found = parts_.empty();
    for (const std::string& part : parts_)
      if (row.find(part) != row.npos) {
        unknown_.erase(part);
        found = true;
      }
    return found;
  }
  // Once all rows were asked for. Throws Error for a part that is in no row's name.
  void check_all_found() const {
    check(unknown_.empty(), "expected names of rows or parts of them; no row's name has \"{}\"",
          fmt::join(unknown_, "\", \""));
  }

 private:
  std::vector<std::string> parts_;
  std::set<std::string> unknown_;
};

// Whether a program's one argument is there. Throws Error for others.
inline bool has_flag(int count, char** arguments, std::string_view flag) {
  for (int i = 1; i < count; ++i) check(arguments[i] == flag, "expected {} or nothing, found {}", flag, arguments[i]);
  return count > 1;
}

}  // namespace wick::bench
