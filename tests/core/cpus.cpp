#include "wick/core/cpus.h"

#include <gtest/gtest.h>

#include "io/files.h"

namespace wick {
namespace {

TEST(Cpus, AQuotaOfEitherVersionLimitsThem) {
  const TemporaryDirectory root;
  const int all = usable_cpus(root.path());
  EXPECT_GE(all, 1);
  for (const auto& [text, cpus] : {std::pair<const char*, int>{"max 100000\n", all},
                                   {"100000 100000\n", 1},
                                   {"10000 100000\n", 1},
                                   {"100000000 100000\n", all},
                                   {"-3 0\n", all},
                                   {"nonsense", all}}) {
    write_plain(root / "cpu.max", text);
    EXPECT_EQ(usable_cpus(root.path()), cpus) << text;
  }
  std::filesystem::remove(root / "cpu.max");
  std::filesystem::create_directory(root / "cpu");
  write_plain(root / "cpu/cpu.cfs_period_us", "100000\n");
  write_plain(root / "cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(usable_cpus(root.path()), all);
  write_plain(root / "cpu/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(usable_cpus(root.path()), 1);
}

}  // namespace
}  // namespace wick
