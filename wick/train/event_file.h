// TensorBoard's event files: records of a serialized `Event` message, each
//
//   u64 length | masked CRC-32C of the length | the message | masked CRC-32C of the message
//
// (tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace wick {

uint32_t masked_crc32c(std::string_view bytes);  // CRC-32C rotated and offset, as TensorFlow stores it

struct ScalarEvent {
  double wall_time = 0;  // seconds since 1970
  int64_t step = 0;
  std::vector<std::pair<std::string, float>> scalars;  // tag and value
};

std::string file_version_record(double wall_time);  // opens every file
std::string scalar_record(const ScalarEvent& event);

}  // namespace wick
