#include "wick/train/event_file.h"

#include <array>
#include <protozero/pbf_writer.hpp>

namespace wick {
namespace {

// Field numbers of event.proto and summary.proto.
enum Event : protozero::pbf_tag_type { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum Summary : protozero::pbf_tag_type { kValue = 1 };
enum Value : protozero::pbf_tag_type { kTag = 1, kSimpleValue = 2, kImage = 4, kTensor = 8, kMetadata = 9 };
enum ImageField : protozero::pbf_tag_type { kHeight = 1, kWidth = 2, kColorspace = 3, kEncodedImage = 4 };
enum TensorField : protozero::pbf_tag_type { kDtype = 1, kTensorShape = 2, kStringVal = 8 };
enum MetadataField : protozero::pbf_tag_type { kPluginData = 1, kPluginName = 1, kDim = 2, kSize = 1 };

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

// An event of one value, whose fields `fill` adds behind its tag.
template <class Fill>
std::string value_record(double wall_time, int64_t step, const std::string& tag, const Fill& fill) {
  std::string message;
  protozero::pbf_writer event(message);
  event.add_double(kWallTime, wall_time);
  event.add_int64(kStep, step);
  {
    protozero::pbf_writer summary(event, kSummary), value(summary, kValue);
    value.add_string(kTag, tag);
    fill(value);
  }
  return framed(message);
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

std::string image_record(const ImageEvent& event) {
  constexpr int32_t kRgb = 3;
  return value_record(event.wall_time, event.step, event.tag, [&](protozero::pbf_writer& value) {
    protozero::pbf_writer image(value, kImage);
    image.add_int32(kHeight, event.height);
    image.add_int32(kWidth, event.width);
    image.add_int32(kColorspace, kRgb);
    image.add_bytes(kEncodedImage, event.png);
  });
}

std::string text_record(const TextEvent& event) {
  constexpr int32_t kString = 7;  // DT_STRING
  return value_record(event.wall_time, event.step, event.tag, [&](protozero::pbf_writer& value) {
    {
      protozero::pbf_writer tensor(value, kTensor);
      tensor.add_enum(kDtype, kString);
      {
        protozero::pbf_writer shape(tensor, kTensorShape), dim(shape, kDim);
        dim.add_int64(kSize, 1);
      }
      tensor.add_bytes(kStringVal, event.text);
    }
    protozero::pbf_writer metadata(value, kMetadata), plugin(metadata, kPluginData);
    plugin.add_string(kPluginName, "text");
  });
}

}  // namespace wick
