// What frozen encoders made of pictures and captions, kept on disk: a safetensors file each, named by the hash of all
// that it follows from. So runs share a folder, and what was made otherwise is not found.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "wick/core/named_tensors.h"

namespace wick {

class EncodingCache {
 public:
  // `made_by` names the encoders and how they compute; `device` has the tensors that are not on the host. A folder that
  // cannot be made is an Error.
  EncodingCache(std::filesystem::path folder, std::string made_by, std::function<Memory&()> device);

  bool has(const std::string& key) const;  // a file, which may yet prove damaged
  // The tensors that `make` gives for `key`: from the file, or made and written. A file of another version of Wick, one
  // that is damaged, or whose tensors do not fit, is made again. Where none can be written, the rest is made without.
  using Fits = std::function<bool(const NamedTensors&)>;
  NamedTensors get(const std::string& key, const std::function<NamedTensors()>& make, const Fits& fits = {});
  std::filesystem::path file_of(const std::string& key) const;  // for messages
  // So many that were not there have been made by several ranks, `own` by this one, and will be read by each: they
  // count once, and not as found.
  void count_as_made(size_t count, size_t own) { shared_ += count, made_ -= std::min(made_, own); }
  const std::string& failure() const { return failure_; }  // why none are written; empty where they are
  // Sentences for the user: how much was found, and what was wrong.
  std::vector<std::string> remarks() const;

 private:
  bool read(const std::filesystem::path& file, const Fits& fits, NamedTensors& tensors);
  void write(const std::filesystem::path& file, const NamedTensors& tensors);

  std::filesystem::path folder_;
  std::string made_by_;
  std::function<Memory&()> device_;
  size_t found_ = 0, made_ = 0, stale_ = 0, shared_ = 0;
  std::string failure_;  // of the first write that failed
};

}  // namespace wick
