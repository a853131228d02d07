#include "wick/train/event_file.h"

#include <array>
#include <cstring>
#include <protozero/pbf_writer.hpp>

#include "wick/core/error.h"
#include "wick/io/protobuf.h"

namespace wick {
namespace {

// Field numbers of event.proto and summary.proto.
enum Event : protozero::pbf_tag_type { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum Summary : protozero::pbf_tag_type { kValue = 1 };
enum Value : protozero::pbf_tag_type { kTag = 1, kSimpleValue = 2 };

constexpr size_t kLengthBytes = 8, kCrcBytes = 4;

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

template <class T>
T read_at(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string framed(std::string_view message) {
  std::string record;
  append(record, uint64_t{message.size()});
  append(record, masked_crc32c(record));
  record += message;
  append(record, masked_crc32c(message));
  return record;
}

std::pair<std::string, float> parse_value(protozero::pbf_reader value) {
  std::pair<std::string, float> scalar;
  while (value.next()) {
    if (at_bytes(value, kTag))
      scalar.first = value.get_string();
    else if (at_float(value, kSimpleValue))
      scalar.second = value.get_float();
    else
      value.skip();
  }
  return scalar;
}

ScalarEvent parse_event(std::string_view message) {
  ScalarEvent event;
  protozero::pbf_reader reader(message.data(), message.size());
  while (reader.next()) {
    if (at_double(reader, kWallTime)) {
      event.wall_time = reader.get_double();
    } else if (at_number(reader, kStep)) {
      event.step = reader.get_int64();
    } else if (at_bytes(reader, kSummary)) {
      protozero::pbf_reader summary = reader.get_message();
      while (summary.next(kValue, protozero::pbf_wire_type::length_delimited))
        event.scalars.push_back(parse_value(summary.get_message()));
    } else {
      reader.skip();
    }
  }
  return event;
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

std::vector<ScalarEvent> parse_event_file(std::string_view bytes, const std::string& source) {
  std::vector<ScalarEvent> events;
  size_t offset = 0;
  while (bytes.size() - offset >= kLengthBytes + kCrcBytes) {
    const auto length = read_at<uint64_t>(bytes, offset);
    check(masked_crc32c(bytes.substr(offset, kLengthBytes)) == read_at<uint32_t>(bytes, offset + kLengthBytes),
          "{}: the length at byte {} does not fit its checksum", source, offset);
    const size_t begin = offset + kLengthBytes + kCrcBytes, room = bytes.size() - begin;
    if (room < kCrcBytes || length > room - kCrcBytes) break;  // unfinished
    const std::string_view message = bytes.substr(begin, length);
    check(masked_crc32c(message) == read_at<uint32_t>(bytes, begin + length),
          "{}: the record at byte {} does not fit its checksum", source, offset);
    try {
      ScalarEvent event = parse_event(message);
      if (!event.scalars.empty()) events.push_back(std::move(event));
    } catch (const protozero::exception& e) {
      fail("{}: the record at byte {} is no event: {}", source, offset, e.what());
    }
    offset = begin + length + kCrcBytes;
  }
  return events;
}

}  // namespace wick
