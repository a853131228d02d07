// The safetensors format (huggingface/safetensors, README "Format"):
//
//   8 bytes   N, the length of the header, little-endian
//   N bytes   JSON: {"__metadata__": {string: string}, NAME: {"dtype", "shape", "data_offsets": [begin, end]}, ...}
//   the rest  the tensors, row-major and little-endian, without holes; offsets count from here
//
// The reader enforces that page's rules, even where they are stricter than the reference implementation: N is at most
// 100 MB, the header starts with '{' and has no duplicate keys, every dtype is known, begin and end agree with shape
// and dtype, and the tensors cover the data exactly. Shapes have at most 6 dimensions. Each breach is one Error that
// names the file, the tensor, the value expected and the one found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "wick/io/sha256.h"
#include "wick/io/tensor_file.h"

namespace wick {

struct SafetensorsHeader {
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

// Parses and checks the JSON header of a file with `data_bytes` bytes behind it. `source` names the file in errors.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes, const std::string& source);

class SafetensorsFile : public TensorFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);  // reads and checks the header only

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The tensor's values in f32, on the host, from any type of io/numbers.h.
  Tensor load_numbers(const std::string& name) const;

 private:
  using TensorFile::TensorFile;
  std::map<std::string, std::string> metadata_;
};

// The file beside `index` that holds each tensor: {"weight_map": {tensor: file}}, as transformers and diffusers write
// it. Throws Error for anything but a plain file name.
std::map<std::string, std::string> read_safetensors_index(const std::filesystem::path& index);

// Writes host tensors of any strides, atomically. The bytes depend only on the arguments: tensors are ordered as by the
// reference implementation (widest dtype first, then by name), metadata by key.
void save_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

// Passes all bytes that save_safetensors() would write, from front to back, to `sink`, for hashing.
void safetensors_bytes(const std::map<std::string, Tensor>& tensors, const std::map<std::string, std::string>& metadata,
                       const std::function<void(std::string_view)>& sink);

// SHA-256 of the data part that save_safetensors() would write: `sshs_model_hash` and `modelspec.hash_sha256`, which
// have to be known before the header is.
std::string sha256_of_tensors(const std::map<std::string, Tensor>& tensors);

}  // namespace wick
