// Which methods of the contract the tests have called. One that none has called fails a run of all tests (reached.cpp).
#pragma once

#include <string_view>
#include <vector>

namespace wick::probe {

struct Method {
  std::string_view name;
  const bool* called;
};
// All that a Reached was named for.
std::vector<Method>& methods();

// `called` is listed as soon as code that could set it is compiled, whether that runs or not.
template <auto method>
struct Reached {
  static constexpr std::string_view name() { return __PRETTY_FUNCTION__; }
  static bool list() {
    methods().push_back({name(), &called});
    return false;
  }
  static inline bool called = list();
};

}  // namespace wick::probe
