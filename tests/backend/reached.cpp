#include "backend/reached.h"

#include <gtest/gtest.h>

#include "backend/probe.h"

namespace wick::probe {

std::vector<Method>& methods() {
  static std::vector<Method> all;
  return all;
}

namespace {

// The CPU's own kernels are called directly; its compositions, and devices, through a Mirror.
struct EveryMethodIsReached final : testing::Environment {
  void TearDown() override {
    if (testing::GTEST_FLAG(filter) != "*" || !is_mirrored()) return;
    EXPECT_GT(methods().size(), 50u);
    for (const Method& method : methods()) EXPECT_TRUE(*method.called) << "no test calls " << method.name;
  }
};

[[maybe_unused]] testing::Environment* const kChecked = testing::AddGlobalTestEnvironment(new EveryMethodIsReached);

}  // namespace
}  // namespace wick::probe
