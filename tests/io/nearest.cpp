#include "wick/io/nearest.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

const std::vector<std::string> kFlags = {"--model", "--dataset",     "--batch-size", "--steps",
                                         "--lr",    "--lr-schedule", "--out",        "--gradient-checkpointing"};

TEST(Nearest, SlipsOfThePen) {
  EXPECT_EQ(nearest("--modle", kFlags), "--model");     // two in the wrong order
  EXPECT_EQ(nearest("--datset", kFlags), "--dataset");  // one too few
  EXPECT_EQ(nearest("--stepps", kFlags), "--steps");    // one too many
  EXPECT_EQ(nearest("--batch-sise", kFlags), "--batch-size");
  EXPECT_EQ(nearest("-model", kFlags), "--model");
  EXPECT_EQ(nearest("model", kFlags), "--model");
  EXPECT_EQ(nearest("--lt", kFlags), "--lr");
}

TEST(Nearest, PartsOfNames) {
  EXPECT_EQ(nearest("--batch", kFlags), "--batch-size");
  EXPECT_EQ(nearest("--output", kFlags), "--out");
  EXPECT_EQ(nearest("--checkpointing", kFlags), "--gradient-checkpointing");
}

TEST(Nearest, OrNothing) {
  for (const char* word : {"", "-", "--", "--x", "--nonsense", "--temperature"}) EXPECT_EQ(nearest(word, kFlags), "");
  EXPECT_EQ(nearest(std::string(100000, 'm'), kFlags), "");
  EXPECT_EQ(nearest("--model", {}), "");
  EXPECT_EQ(did_you_mean("trian", {"train", "plan"}), "; did you mean train?");
  EXPECT_EQ(did_you_mean("draw", {"train", "plan"}), "");
}

}  // namespace
}  // namespace wick
