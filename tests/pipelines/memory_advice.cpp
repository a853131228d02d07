// Advice for what does not fit into memory, of changes that are made up.
#include "wick/pipelines/memory_advice.h"

#include <gtest/gtest.h>

#include "wick/core/error.h"

namespace wick {
namespace {

constexpr size_t kMiB = size_t{1} << 20, kRoom = 10 * kMiB;

MemoryChange change(const char* flags, size_t mebibytes) {
  return [=] { return if_fits(flags, mebibytes * kMiB, kRoom); };
}

TEST(MemoryAdvice, NamesWhatFits) {
  EXPECT_EQ(memory_advice({change("--a", 10), change("--b", 11), change("--c", 2)}, {change("--d", 1)}),
            "--a would need 10.0 MiB, --c 2.0 MiB");
}

TEST(MemoryAdvice, SeveralTogetherWhereNoneIsEnough) {
  EXPECT_EQ(memory_advice({change("--a", 11)}, {change("--a --b", 12), change("--a --c", 9), change("--d", 1)}),
            "--a --c would need 9.0 MiB");
}

TEST(MemoryAdvice, ASmallerModelWhereNothingHelps) {
  EXPECT_EQ(memory_advice({change("--a", 11)}, {change("--b", 12)}),
            "expected a smaller model, or a device with more memory");
  EXPECT_EQ(memory_advice({}, {}), "expected a smaller model, or a device with more memory");
}

TEST(MemoryAdvice, WhatCannotBeMadeIsLeftOut) {
  const MemoryChange refused = []() -> std::optional<Fitting> { fail("no such form"); };
  EXPECT_EQ(memory_advice({refused, first_that_fits({refused, change("--a", 11), change("--b", 3), change("--c", 1)})},
                          {refused}),
            "--b would need 3.0 MiB");
}

TEST(MemoryAdvice, TheMostThatFits) {
  for (int64_t most = 0; most <= 12; ++most) {
    const auto fits = [&](int64_t n) { return n <= most; };
    EXPECT_EQ(most_that_fits(3, 9, fits), most < 3 ? 0 : std::min<int64_t>(most, 9)) << most;
  }
  EXPECT_EQ(most_that_fits(1, 0, [](int64_t) { return true; }), 0);
}

}  // namespace
}  // namespace wick
