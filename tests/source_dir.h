// The folder of the tests' sources: as built, or WICK_SOURCE_DIR if the build was carried elsewhere.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace wick::test {

inline std::filesystem::path source_dir() {
  const char* elsewhere = std::getenv("WICK_SOURCE_DIR");
  return elsewhere ? elsewhere : WICK_SOURCE_DIR;
}

}  // namespace wick::test
