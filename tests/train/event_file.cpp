// TensorBoard records: checksums against RFC 3720's values, and records against bytes written by hand.
#include "wick/train/event_file.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

uint32_t unmasked(uint32_t crc) {
  const uint32_t rotated = crc - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

TEST(EventFile, ChecksumIsCastagnolis) {
  EXPECT_EQ(unmasked(masked_crc32c(std::string(32, '\0'))), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(unmasked(masked_crc32c(std::string(32, '\xff'))), 0x62a8ab43u);
  EXPECT_EQ(unmasked(masked_crc32c("123456789")), 0xe3069283u);
}

std::string record_of(const std::string& message) {
  const auto bytes = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const std::string length = bytes(uint64_t(message.size()));
  return length + bytes(masked_crc32c(length)) + message + bytes(masked_crc32c(message));
}

TEST(EventFile, BytesAreTensorFlows) {
  // event.proto by hand: wall_time 1.5, file_version "brain.Event:2".
  const std::string time("\x09\0\0\0\0\0\0\xf8\x3f", 9);
  EXPECT_EQ(file_version_record(1.5), record_of(time + "\x1a\x0d" + "brain.Event:2"));
  // wall_time, step 3, and summary.proto: two values, each a tag and a simple_value.
  const std::string loss("\x0a\x0b\x0a\x04loss\x15\0\0\x80\x3e", 13), lr("\x0a\x09\x0a\x02lr\x15\0\0\0\x3f", 11);
  EXPECT_EQ(scalar_record({.wall_time = 1.5, .step = 3, .scalars = {{"loss", 0.25f}, {"lr", 0.5f}}}),
            record_of(time + "\x10\x03\x2a\x18" + loss + lr));
}

// As TensorBoard's own protobufs write them.
TEST(EventFile, PicturesAndTextsAreTensorBoards) {
  const std::string time("\x09\0\0\0\0\0\0\xf8\x3f\x10\x03\x2a", 12);
  EXPECT_EQ(image_record({1.5, 3, "a", 300, 2, "PNG"}),
            record_of(time + "\x13\x0a\x11\x0a\x01"
                             "a\"\x0c\x08\x02\x10\xac\x02\x18\x03\"\x03PNG"));
  EXPECT_EQ(text_record({1.5, 3, "a", "hi"}), record_of(time + "\x1d\x0a\x1b\x0a\x01"
                                                               "aB\x0c\x08\x07\x12\x04\x12\x02\x08\x01"
                                                               "B\x02hiJ\x08\x0a\x06\x0a\x04text"));
}

}  // namespace
}  // namespace wick
