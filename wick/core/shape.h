// Extents or strides of a tensor, by value and without allocation. Outermost first.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "wick/core/error.h"

namespace wick {

inline constexpr int kMaxRank = 6;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    for (int64_t d : dims) push_back(d);
  }
  template <class Iterator>
  Shape(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(*first);
  }

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  int64_t& operator[](int i) { return dims_[size_t(i)]; }
  int64_t operator[](int i) const { return dims_[size_t(i)]; }
  int64_t back() const { return dims_[size_t(rank_ - 1)]; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }
  int64_t* begin() { return dims_.data(); }
  int64_t* end() { return dims_.data() + rank_; }

  void push_back(int64_t d) {
    check(rank_ < kMaxRank, "shape: at most {} dimensions are supported", kMaxRank);
    dims_[size_t(rank_++)] = d;
  }

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : *this) n *= d;
    return n;
  }

  bool operator==(const Shape& other) const {
    return rank_ == other.rank_ && std::equal(begin(), end(), other.begin());
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[2, 77, 768]"
Shape contiguous_strides(const Shape& shape);

}  // namespace wick

template <>
struct fmt::formatter<wick::Shape> : fmt::formatter<std::string> {
  auto format(const wick::Shape& s, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(wick::to_string(s), context);
  }
};
