// TensorBoard records: checksums against RFC 3720's values, and written records parse back.
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

std::string record_of(const std::string& message) {
  const auto bytes = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const std::string length = bytes(uint64_t(message.size()));
  return length + bytes(masked_crc32c(length)) + message + bytes(masked_crc32c(message));
}

TEST(EventFile, AFieldInAnotherEncodingIsPassedOver) {
  // wall_time (1) as a varint, step (2) as a string, the summary (5) as a fixed32, and then a true summary whose
  // value (1) is a varint first; its tag (1) is a varint first, its simple_value (2) a string first.
  const std::string value = std::string("\x08\x07\x12\x02zz", 6) + std::string("\x0a\x01x\x15\0\0\x80\x3f", 8);
  const std::string summary = std::string("\x08\x01\x0a", 3) + char(value.size()) + value;
  const std::string event = std::string("\x08\x05\x12\x02zz\x2d\0\0\0\0\x2a", 12) + char(summary.size()) + summary;
  const auto events = parse_event_file(record_of(event), "test");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].scalars, (std::vector<std::pair<std::string, float>>{{"x", 1.0f}}));
  EXPECT_EQ(events[0].wall_time, 0);
  for (const char* cut : {"\x2a\x7f", "\x10", "\x09\x01", "\x07\x01"})
    expect_error([&] { parse_event_file(record_of(cut), "events"); }, {"events", "byte 0"});
}

}  // namespace
}  // namespace wick
