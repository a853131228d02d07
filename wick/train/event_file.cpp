#include "wick/train/event_file.h"

#include <array>
#include <protozero/pbf_writer.hpp>

namespace wick {
namespace {

// Field numbers of event.proto and summary.proto.
enum Event : protozero::pbf_tag_type { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum Summary : protozero::pbf_tag_type { kValue = 1 };
enum Value : protozero::pbf_tag_type { kTag = 1, kSimpleValue = 2 };

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c & 1 ? 0x82F63B78u : 0);  // Castagnoli's polynomial, reflected
    table[i] = c;
  }
  return table;
}();

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian, as every host of ours is
}

std::string framed(std::string_view message) {
  std::string record;
  append(record, uint64_t{message.size()});
  append(record, masked_crc32c(record));
  record += message;
  append(record, masked_crc32c(message));
  return record;
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = kCrcTable[(crc ^ uint8_t(c)) & 0xff] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string file_version_record(double wall_time) {
  std::string message;
  protozero::pbf_writer event(message);
  event.add_double(kWallTime, wall_time);
  event.add_string(kFileVersion, "brain.Event:2");
  return framed(message);
}

std::string scalar_record(const ScalarEvent& scalars) {
  std::string message;
  protozero::pbf_writer event(message);
  event.add_double(kWallTime, scalars.wall_time);
  event.add_int64(kStep, scalars.step);
  {
    protozero::pbf_writer summary(event, kSummary);
    for (const auto& [tag, number] : scalars.scalars) {
      protozero::pbf_writer value(summary, kValue);
      value.add_string(kTag, tag);
      value.add_float(kSimpleValue, number);
    }
  }
  return framed(message);
}

}  // namespace wick
