#include "wick/train/faults.h"

#include <fmt/format.h>

#include "wick/io/count.h"

namespace wick {

void Faults::add(std::string fault) {
  constexpr size_t kTold = 5;
  ++count_;
  if (first_.size() < kTold) first_.push_back(std::move(fault));
}

void Faults::check(const std::string& source) const {
  if (count_ == 0) return;
  wick::check(count_ > 1, "{}", first_.front());
  std::string text;
  for (size_t i = 0; i < first_.size(); ++i) {
    std::string fault = first_[i];
    for (const char* separator : {"/", ": "})
      if (fault.starts_with(source + separator)) fault.erase(0, (source + separator).size());
    text += fmt::format(" ({}) {}", i + 1, fault);
  }
  if (count_ > first_.size()) text += fmt::format(" and {}", count_of(count_ - first_.size(), "other"));
  fail("{}: {}:{}", source, count_of(count_, "fault"), text);
}

}  // namespace wick
