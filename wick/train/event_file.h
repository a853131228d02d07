// TensorBoard's event files: records of a serialized `Event` message, each
//
//   u64 length | masked CRC-32C of the length | the message | masked CRC-32C of the message
//
// (tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto
// and tensor.proto; texts as tensorboard/plugins/text/metadata.py marks them).
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

struct ImageEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string tag;
  int width = 0, height = 0;
  std::string png;  // a file's bytes
};

struct TextEvent {  // shown as Markdown
  double wall_time = 0;
  int64_t step = 0;
  std::string tag, text;
};

std::string file_version_record(double wall_time);  // opens every file
std::string scalar_record(const ScalarEvent& event);
std::string image_record(const ImageEvent& event);
std::string text_record(const TextEvent& event);

}  // namespace wick
