// Which pictures of a folder a run holds back for validation.
//
// Sources: sd-scripts, split_train_val() in library/train_util.py, which shuffles by Python's random module; CPython,
// Lib/random.py and Modules/_randommodule.c; Matsumoto and Nishimura, "Mersenne Twister", 1998.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace wick {

struct Split {
  double held_back = 0;    // the share that is held back; 0: none, and all are read
  uint64_t seed = 0;       // of the shuffle
  bool validates = false;  // the pictures that are held back are read, and not the others
};

// Indices of the pictures that are read, of `count` in the order of their names; sorted. Of the shuffled pictures the
// first ceil(count · (1 - held_back)) are trained on, and of the others the last round(count · held_back) are held
// back, where halves are rounded to even. (There a picture may be both; here what is trained on is not held back.)
std::vector<size_t> chosen(size_t count, const Split& split);

// The order that random.seed(seed); random.shuffle(list(range(count))) makes.
std::vector<size_t> python_shuffle(size_t count, uint64_t seed);

}  // namespace wick
