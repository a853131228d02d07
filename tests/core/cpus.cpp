#include "wick/core/cpus.h"

#include <gtest/gtest.h>

#include "io/files.h"

namespace wick {
namespace {

// A file system of control groups and the list of a process's groups.
class Cpus : public testing::Test {
 protected:
  CpuLimits limits() const { return cpu_limits(root_.path(), root_ / "groups"); }
  void set(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((root_ / file).parent_path());
    write_plain(root_ / file, text);
  }
  void set_version_1(const std::string& folder, int quota) const {
    set(folder + "/cpu.cfs_period_us", "100000\n");
    set(folder + "/cpu.cfs_quota_us", std::to_string(quota) + "\n");
  }

  const TemporaryDirectory root_;
  const int all_ = limits().usable;
};

TEST_F(Cpus, AQuotaLimitsThem) {
  EXPECT_GE(all_, 1);
  EXPECT_FALSE(limits().quota_binds);
  struct Row {
    const char* text;
    int cpus;
    bool binds;
  };
  for (const Row& row : {Row{"max 100000\n", all_, false},
                         {"100000 100000\n", 1, all_ > 1},
                         {"150000 100000\n", std::min(2, all_), all_ > 1},
                         {"10000 100000\n", 1, true},
                         {"100000000 100000\n", all_, false},
                         {"-3 0\n", all_, false},
                         {"nonsense", all_, false}}) {
    set("cpu.max", row.text);
    EXPECT_EQ(limits().usable, row.cpus) << row.text;
    EXPECT_EQ(limits().quota_binds, row.binds) << row.text;
  }
}

TEST_F(Cpus, AQuotaOfVersion1LimitsThem) {
  set_version_1("cpu", -1);
  EXPECT_EQ(limits().usable, all_);
  set_version_1("cpu", 50000);
  EXPECT_EQ(limits().usable, 1);
  EXPECT_TRUE(limits().quota_binds);
}

TEST_F(Cpus, TheSmallestQuotaOfAllParentsCounts) {
  set("groups", "0::/outer/middle/inner\n");
  for (const char* group : {"", "/outer", "/outer/middle", "/outer/middle/inner"}) {
    const std::string file = "." + std::string(group) + "/cpu.max";
    set(file, "50000 100000\n");
    EXPECT_TRUE(limits().quota_binds) << group;
    EXPECT_EQ(limits().usable, 1) << group;
    set(file, "max 100000\n");
    EXPECT_FALSE(limits().quota_binds) << group;
  }
}

TEST_F(Cpus, AGroupBesideOrBelowDoesNotCount) {
  set("groups", "0::/outer\n");
  set("beside/cpu.max", "50000 100000\n");
  set("outer/inner/cpu.max", "50000 100000\n");
  EXPECT_FALSE(limits().quota_binds);
}

TEST_F(Cpus, NestedGroupsOfVersion1) {
  for (const char* controllers : {"cpu", "cpu,cpuacct", "cpuacct,cpu"})
    for (const char* folder : {"/a", "/a/b"}) {
      const std::string mount = controllers, path = mount + folder;
      set("groups", "9:name=systemd:/a/b\n2:" + mount + ":/a/b\n0::/\n");
      set_version_1(path, 50000);
      EXPECT_TRUE(limits().quota_binds) << path;
      set_version_1(path, -1);
      EXPECT_FALSE(limits().quota_binds) << path;
    }
  set("groups", "2:cpuset:/a\n");
  set_version_1("cpuset/a", 50000);
  EXPECT_FALSE(limits().quota_binds);
}

TEST_F(Cpus, APathOfTheHostReadsAsTheMountsOwn) {
  set("groups", "0::/docker/0123\n");
  set("cpu.max", "50000 100000\n");
  EXPECT_TRUE(limits().quota_binds);
}

TEST_F(Cpus, Version2BesideVersion1) {
  set("groups", "1:name=systemd:/a\n0::/a\n");
  set("unified/a/cpu.max", "50000 100000\n");
  EXPECT_TRUE(limits().quota_binds);
}

}  // namespace
}  // namespace wick
