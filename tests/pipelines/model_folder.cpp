#include "wick/pipelines/model_folder.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"

namespace wick {
namespace {

TEST(ModelFolder, OneThatIsWrittenOverIsNotWholeUntilItsEnd) {
  const TemporaryDirectory folder;
  const std::filesystem::path from = test::source_dir() / "tests/golden/sdxl", last = folder / "to" / kDiffusersLast;
  const auto write = [&](bool fails) {
    write_model_folder(from, folder / "to", {"unet"}, [&](const std::string&, const std::filesystem::path&) {
      EXPECT_FALSE(std::filesystem::exists(last));
      check(!fails, "no room");
    });
  };
  write(false);
  EXPECT_TRUE(std::filesystem::exists(last));
  expect_error([&] { write(true); }, {"no room"});
  EXPECT_FALSE(std::filesystem::exists(last));
}

}  // namespace
}  // namespace wick
