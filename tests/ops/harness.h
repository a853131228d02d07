// One row per case: a name, the op that it covers, the inputs, and the function. From a row come
//  - the backward against central differences at fresh random inputs, for every differentiable input,
//  - the same with every input strided (a transposed or padded window on larger storage).
// The test that walks Op::all() fails for an op without a row.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "wick/ops/ops.h"

namespace wick::test {

struct OpCase {
  std::string op;             // as registered
  std::string name;           // unique
  std::vector<Shape> inputs;  // normal random; all are checked
  std::function<Tensor(const std::vector<Tensor>&)> f;
  double step = 1e-2;  // of the central difference, in input units
  float scale = 1;     // of the random inputs
  float shift = 0;
};

inline std::ostream& operator<<(std::ostream& out, const OpCase& row) { return out << row.name; }

const std::vector<OpCase>& op_cases();

}  // namespace wick::test
