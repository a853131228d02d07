// An open file of named tensors, whatever its format. Copies share it, and load() may be called from several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "wick/core/tensor.h"

namespace wick {

class FileDescriptor;

struct TensorInfo {
  std::string dtype_name;         // as the file spells it: "BF16", "IQ4_XS", or "type 99"
  std::optional<DType> dtype;     // none where Wick cannot load it: F64, F8_E4M3, IQ4_XS, ...
  Shape shape;                    // outermost first
  uint64_t begin = 0;             // bytes from the start of its file's data
  std::optional<uint64_t> bytes;  // none where the type is not known
  size_t part = 0;                // of the files that hold the data
};

// The shape of these extents; none if it is larger than any memory, where an element takes `unit`.
std::optional<Shape> checked_shape(std::span<const uint64_t> extents, uint64_t unit);

class TensorFile {
 public:
  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }

  // The tensor in the file's own dtype, in any memory. Reads, never maps (docs/decisions/002), so that a file that
  // shrinks meanwhile is an Error. Throws Error for an unknown name or a dtype that Wick does not compute with.
  Tensor load(const std::string& name, Memory& memory = host_memory()) const;
  Memory::Source bytes(const std::string& name) const;  // reads them from the file, for Memory::fill()

 protected:
  // `advice` ends the message about a dtype that Wick does not compute with.
  TensorFile(const std::filesystem::path& path, const char* advice);
  const TensorInfo& info_of(const std::string& name) const;

  // Takes the tensors of a further file of the same format as a part of this one. Throws Error for a name that is here.
  void add_part(const TensorFile& more);

  std::filesystem::path path_;
  std::shared_ptr<const FileDescriptor> file_;
  std::map<std::string, TensorInfo> tensors_;
  uint64_t data_ = 0;  // where the data begin in the file

 private:
  struct Part {
    std::shared_ptr<const FileDescriptor> file;
    uint64_t data;
  };
  std::vector<Part> more_;  // part 1 is the first of them
  const char* advice_;
};

}  // namespace wick
