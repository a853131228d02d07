// Where the sources of the tests are: as built, or where WICK_SOURCE_DIR says if the build was carried elsewhere.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace wick::test {

inline std::filesystem::path source_dir() {
  const char* elsewhere = std::getenv("WICK_SOURCE_DIR");
  return elsewhere ? elsewhere : WICK_SOURCE_DIR;
}

}  // namespace wick::test
