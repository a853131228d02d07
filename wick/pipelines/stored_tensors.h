// The tensors of safetensors files as those have them, for programs that write files like them.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "wick/core/tensor.h"
#include "wick/io/safetensors.h"
#include "wick/io/safetensors_writer.h"

namespace wick {

using StoredTensors = std::map<std::string, SafetensorsFile>;  // each with the file that holds it

// Those of a safetensors file, of the shards that an index names, or of the folder of one network.
StoredTensors stored_tensors(const std::filesystem::path& path);

SafetensorsGroup copied(const std::string& name, const SafetensorsFile& file);  // byte for byte

// How a file has a tensor of floats, 32 bits to 8, for other values in its place.
struct StoredFormat {
  SafetensorsEntry values;
  // What multiplies the values, in equal runs (nn/fp8.h), and the numbers that the file has there.
  std::optional<SafetensorsEntry> scales = {};
  std::vector<float> numbers = {};

  struct Bytes {
    std::vector<char> values, scales;
  };

  // Throws Error for any other type, which it names.
  static StoredFormat of(const std::string& name, const SafetensorsFile& file);
  // x f32 on the host, as many as the tensor has, rounded to the nearest. Values of 8 bits that have scales get new
  // ones: the largest magnitude of a run becomes the type's largest. Scales of wider values stay. Throws Error where x
  // is too large for the type.
  Bytes encoded(const Tensor& x) const;
};

}  // namespace wick
