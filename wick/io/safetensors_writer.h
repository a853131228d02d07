// Safetensors files of tensors that are made as they are written, in any of the format's types.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "wick/core/shape.h"

namespace wick {

struct SafetensorsEntry {
  using Sink = std::function<void(const void* data, size_t bytes)>;

  std::string name, dtype;  // a type of io/safetensors_format.h: "F8_E4M3"
  Shape shape;
  std::function<void(const Sink& sink)> write;  // passes all bytes, row-major, from front to back
};

// As save_safetensors() does, in the same order: one tensor after the other is written.
void save_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& entries,
                      const std::map<std::string, std::string>& metadata);

}  // namespace wick
