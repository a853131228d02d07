#include "wick/io/sha256.h"

#include "io/files.h"

namespace wick {
namespace {

// FIPS 180-4's own examples.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesAndFilesHashAlike) {
  TemporaryDirectory dir;
  const std::string bytes(3'000'000, 'w');
  write_plain(dir / "f", bytes);
  Sha256 pieces;
  pieces.update(bytes.data(), 1);
  pieces.update(bytes.data() + 1, bytes.size() - 1);
  EXPECT_EQ(pieces.hex(), sha256_hex(bytes));
  EXPECT_EQ(sha256_hex_of_file(dir / "f"), sha256_hex(bytes));
  expect_error([&] { sha256_hex_of_file(dir / "missing"); }, {"missing: cannot open"});
}

}  // namespace
}  // namespace wick
