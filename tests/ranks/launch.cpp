// The place that launchers give to a process.
#include "wick/ranks/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "io/files.h"

namespace wick {
namespace {

using Variables = std::map<std::string, std::string>;

class LaunchTest : public testing::Test {
 protected:
  LaunchTest() {
    for (const char* name : kAll)
      if (const char* value = std::getenv(name)) before_[name] = value;
  }
  ~LaunchTest() override { set(before_); }

  std::optional<RankPlace> place(const Variables& variables) {
    set(variables);
    return rank_from_environment();
  }
  void refused(const Variables& variables, std::initializer_list<std::string_view> parts) {
    expect_error([&] { place(variables); }, parts);
    EXPECT_THROW(place(variables), UsageError);
  }

  Variables torchrun_{{"RANK", "5"},
                      {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"MASTER_ADDR", "host-a"},
                      {"MASTER_PORT", "29400"}};
  Variables open_mpi_{{"OMPI_COMM_WORLD_RANK", "2"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  Variables slurm_{{"SLURM_PROCID", "3"},
                   {"SLURM_NTASKS", "4"},
                   {"SLURM_LOCALID", "1"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_NNODES", "1"}};

  static Variables with(Variables all, const Variables& changed) {
    for (const auto& [name, value] : changed) all[name] = value;
    return all;
  }

 private:
  static constexpr const char* kAll[] = {"RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "WICK_ID_PORT",
                                         "WICK_ID_FILE",
                                         "WICK_RANK_TIMEOUT",
                                         "OMPI_COMM_WORLD_RANK",
                                         "SLURM_PROCID",
                                         "SLURM_NTASKS",
                                         "SLURM_LOCALID",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "SLURM_STEP_ID",
                                         "SLURM_NNODES",
                                         "OMPI_COMM_WORLD_LOCAL_SIZE"};

  static void set(const Variables& variables) {
    for (const char* name : kAll) ::unsetenv(name);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }

  Variables before_;
};

TEST_F(LaunchTest, Alone) {
  EXPECT_FALSE(place({}));
  EXPECT_FALSE(place({{"WORLD_SIZE", "1"}}));
  EXPECT_FALSE(place({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}));
  EXPECT_FALSE(place({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
  EXPECT_FALSE(place({{"MASTER_ADDR", "host-a"}, {"MASTER_PORT", "nonsense"}, {"LOCAL_RANK", "3"}}));
  EXPECT_FALSE(place({{"RANK", ""}, {"WORLD_SIZE", ""}}));
}

TEST_F(LaunchTest, Torchrun) {
  const auto found = place(torchrun_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 5);
  EXPECT_EQ(found->count, 8);
  EXPECT_EQ(found->local, 1);
  EXPECT_EQ(found->address, "host-a");
  EXPECT_EQ(found->port, 29401);
  EXPECT_EQ(found->id_file, "");
  EXPECT_EQ(found->timeout, std::chrono::seconds(300));
  EXPECT_EQ(found->silence, std::chrono::seconds(20));
}

TEST_F(LaunchTest, OpenMpi) {
  const auto found = place(open_mpi_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->count, 4);
  EXPECT_EQ(found->local, 2);
  EXPECT_EQ(found->address, "127.0.0.1");
  EXPECT_EQ(found->port, 29501);
  const Variables two_machines = with(open_mpi_, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  refused(two_machines, {"MASTER_ADDR", "OMPI_COMM_WORLD_SIZE tells of 4 processes", "found nothing", "WICK_ID_FILE"});
  EXPECT_EQ(place(with(two_machines, {{"MASTER_ADDR", "::1"}}))->address, "::1");
}

TEST_F(LaunchTest, Slurm) {
  const auto found = place(slurm_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->count, 4);
  EXPECT_EQ(found->local, 1);
  EXPECT_EQ(found->address, "127.0.0.1");
  refused(with(slurm_, {{"SLURM_NNODES", "2"}}), {"MASTER_ADDR", "SLURM_NTASKS tells of 4"});
  // A batch script without srun, and a step of one task.
  EXPECT_FALSE(place(with(slurm_, {{"SLURM_STEP_ID", ""}})));
  EXPECT_FALSE(place(with(slurm_, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})));
}

TEST_F(LaunchTest, TorchrunComesFirst) {
  Variables all = torchrun_;
  all.insert(open_mpi_.begin(), open_mpi_.end());
  all.insert(slurm_.begin(), slurm_.end());
  EXPECT_EQ(place(all)->count, 8);
}

TEST_F(LaunchTest, WickVariables) {
  EXPECT_EQ(place(with(torchrun_, {{"WICK_ID_PORT", "1234"}}))->port, 1234);
  EXPECT_EQ(place(with(torchrun_, {{"WICK_RANK_TIMEOUT", "7"}}))->timeout, std::chrono::seconds(7));
  const auto by_file = place(with(torchrun_, {{"WICK_ID_FILE", "/shared/id"}}));
  EXPECT_EQ(by_file->id_file, "/shared/id");
  EXPECT_EQ(by_file->address, "");
  EXPECT_EQ(by_file->port, 0);
  EXPECT_EQ(place(with(torchrun_, {{"WICK_ID_FILE", "/shared/id"}, {"WICK_ID_PORT", "1234"}}))->port, 1234);
}

TEST_F(LaunchTest, NonsenseNamesItsVariable) {
  refused(with(torchrun_, {{"RANK", "8"}}), {"RANK: expected a number from 0 to 7 (WORLD_SIZE is 8), found \"8\""});
  refused(with(torchrun_, {{"RANK", "-1"}}), {"RANK:", "found \"-1\""});
  refused(with(torchrun_, {{"RANK", "1x"}}), {"RANK:", "found \"1x\""});
  refused(with(torchrun_, {{"RANK", ""}}), {"RANK:", "found nothing"});
  refused(with(torchrun_, {{"WORLD_SIZE", ""}}),
          {"WORLD_SIZE: expected a number from 1", "since RANK is set", "nothing"});
  refused(with(torchrun_, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE:", "found \"0\""});
  refused(with(torchrun_, {{"WORLD_SIZE", "99999999999999999999"}}), {"WORLD_SIZE:"});
  refused(with(torchrun_, {{"LOCAL_RANK", ""}}), {"LOCAL_RANK:", "found nothing"});
  refused(with(torchrun_, {{"MASTER_PORT", "65535"}}), {"MASTER_PORT: expected a number from 1 to 65534"});
  refused(with(torchrun_, {{"MASTER_PORT", "http"}}), {"MASTER_PORT:", "found \"http\""});
  refused(with(torchrun_, {{"MASTER_ADDR", ""}}), {"MASTER_ADDR:", "WORLD_SIZE tells of 8"});
  refused(with(torchrun_, {{"WICK_ID_PORT", "0"}}), {"WICK_ID_PORT:", "1 to 65535"});
  refused(with(torchrun_, {{"WICK_RANK_TIMEOUT", "5 min"}}), {"WICK_RANK_TIMEOUT:", "seconds", "\"5 min\""});
  refused({{"RANK", "1"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}, {"RANK: expected a number from 0 to 0"});
  refused(with(open_mpi_, {{"OMPI_COMM_WORLD_RANK", "4"}}), {"OMPI_COMM_WORLD_RANK:", "OMPI_COMM_WORLD_SIZE is 4"});
  refused(with(slurm_, {{"SLURM_PROCID", "a"}}), {"SLURM_PROCID:", "found \"a\""});
  refused(with(slurm_, {{"SLURM_LOCALID", ""}}), {"SLURM_LOCALID:", "found nothing"});
}

}  // namespace
}  // namespace wick
