// The GGUF format (ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian:
//
//   "GGUF", u32 version, u64 tensors, u64 metadata entries
//   metadata   each: key, u32 type, value. A string is u64 bytes and UTF-8; an array u32 type, u64 count, values
//   tensors    each: name, u32 rank, u64 extents (the innermost first), u32 type, u64 offset from the start of the data
//   the data   begin at the next multiple of general.alignment (32), as every tensor's offset is one
//
// Nothing in a file is believed: each breach is one Error that names the file, the value expected and the one found.
// Reading takes memory in proportion to the file. Shapes are turned to Wick's order, outermost first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "wick/io/config.h"
#include "wick/io/tensor_file.h"

namespace wick {

// The index of an alternative is the number of its type in the file. Arrays do not nest (nor do they in llama.cpp).
using GgufArray = std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>, std::vector<int16_t>,
                               std::vector<uint32_t>, std::vector<int32_t>, std::vector<float>, std::vector<bool>,
                               std::vector<std::string>, std::monostate, std::vector<uint64_t>, std::vector<int64_t>,
                               std::vector<double>>;
using GgufValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool, std::string,
                               GgufArray, uint64_t, int64_t, double>;

std::string to_string(const GgufValue& value);  // one line; for an array its count and kind of elements

// A file's metadata, asked for by key and type. Every getter throws one Error that names the file and the key, the
// value expected and the one found; integers of any width count as integers, floats of either width as numbers.
class GgufMetadata {
 public:
  using Entries = std::vector<std::pair<std::string, GgufValue>>;  // in the file's order

  GgufMetadata() = default;
  GgufMetadata(std::string source, Entries entries);  // throws Error for duplicate keys

  const std::string& source() const { return source_; }
  const Entries& entries() const { return entries_; }
  bool has(const std::string& key) const { return index_.contains(key); }

  int64_t integer(const std::string& key, IntegerRange range = {}) const;
  int64_t integer_or(const std::string& key, int64_t fallback, IntegerRange range = {}) const;
  double number(const std::string& key) const;  // finite; integers count as numbers
  double number_or(const std::string& key, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  const std::string& text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;

  // Arrays, as a tokenizer has them. Strings are the file's bytes: tokens need not be UTF-8.
  const std::vector<std::string>& texts(const std::string& key) const;
  std::vector<float> numbers(const std::string& key) const;
  std::vector<int64_t> integers(const std::string& key, IntegerRange range = {}) const;

 private:
  const GgufValue& value(const std::string& key) const;
  [[noreturn]] void fail_value(const std::string& key, std::string_view expected) const;

  std::string source_;
  Entries entries_;
  std::map<std::string, size_t> index_;
};

class GgufFile : public TensorFile {
 public:
  // Reads and checks all but the data. Of a model in several files (llama.cpp's gguf-split: NAME-00001-of-00003.gguf)
  // any part stands for all of them; path() and the metadata are the first one's.
  static GgufFile open(const std::filesystem::path& path);
  static bool is_gguf(const std::filesystem::path& path);  // by its first bytes; false if there is no such file

  uint32_t version() const { return version_; }
  const GgufMetadata& metadata() const { return metadata_; }

 private:
  friend class GgufReader;
  using TensorFile::TensorFile;
  uint32_t version_ = 0;
  GgufMetadata metadata_;
};

// A tensor to be written. It is made when its turn comes, so that one at a time is in memory.
struct GgufEntry {
  std::string name;
  DType dtype;
  Shape shape;
  std::function<Tensor()> make;
};

// Writes version 3, atomically; the bytes depend only on the arguments. Tensors keep the order given.
void save_gguf(const std::filesystem::path& path, const GgufMetadata::Entries& metadata,
               const std::vector<GgufEntry>& tensors);

}  // namespace wick
