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
  std::string name, dtype;  // a type of io/safetensors_format.h: "F8_E4M3"
  Shape shape;
};

// Tensors that are made together. They lie in unlike parts of the file, and each byte of them is passed once,
// row-major, in any order and by any thread.
struct SafetensorsGroup {
  // Bytes of the entry of that number, from `offset` on.
  using Sink = std::function<void(size_t entry, uint64_t offset, const void* data, size_t bytes)>;

  std::vector<SafetensorsEntry> entries;
  std::function<void(const Sink& sink)> write;
};

// As save_safetensors() does, in the same order of tensors: one group after the other is made. `order` is another one:
// the names of all tensors.
void save_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsGroup>& groups,
                      const std::map<std::string, std::string>& metadata, const std::vector<std::string>& order = {});

// The most bytes of tensors in a shard, as huggingface_hub has it.
inline constexpr uint64_t kShardBytes = 5'000'000'000;
// The same; what takes more than `most` bytes becomes shards of at most as many, "model-00001-of-00003.safetensors" for
// the path "model.safetensors", and behind them their index, "model.safetensors.index.json". A group is not split.
void save_shards(const std::filesystem::path& path, const std::vector<SafetensorsGroup>& groups,
                 const std::map<std::string, std::string>& metadata, uint64_t most = kShardBytes);

}  // namespace wick
