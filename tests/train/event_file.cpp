// TensorBoard records: checksums against RFC 3720's values, and what is written parses back.
#include "wick/train/event_file.h"

#include <gtest/gtest.h>

#include "io/files.h"

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

TEST(EventFile, BytesAreTensorFlows) {
  // event.proto by hand: wall_time 1.5, file_version "brain.Event:2".
  const std::string record = file_version_record(1.5);
  const std::string message = std::string("\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d", 11) + "brain.Event:2";
  ASSERT_EQ(record.size(), 8 + 4 + message.size() + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, message.size()), message);
}

TEST(EventFile, WhatIsWrittenParsesBack) {
  std::string bytes = file_version_record(3.0);
  for (int64_t step = 1; step <= 3; ++step)
    bytes += scalar_record({.wall_time = 4.25, .step = step, .scalars = {{"loss", 0.5f / float(step)}, {"lr", 1e-4f}}});
  const auto events = parse_event_file(bytes, "test");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].step, 3);
  EXPECT_EQ(events[2].wall_time, 4.25);
  EXPECT_EQ(events[1].scalars, (std::vector<std::pair<std::string, float>>{{"loss", 0.25f}, {"lr", 1e-4f}}));
  EXPECT_EQ(parse_event_file(bytes.substr(0, bytes.size() - 3), "test").size(), 2u) << "an unfinished record";
  bytes[bytes.size() - 6] ^= 1;
  expect_error([&] { parse_event_file(bytes, "events"); }, {"events", "checksum"});
}

}  // namespace
}  // namespace wick
