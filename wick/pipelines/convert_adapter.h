// Adapters under other programs' names, of other ranks, and several as one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "wick/pipelines/adapter_file.h"
#include "wick/pipelines/adapter_modules.h"

namespace wick {

// A LoRA on some of a module's rows, in the module's order.
struct LoraRows {
  int64_t first = 0;
  StoredLora lora;

  int64_t end() const { return first + lora.up.dim(0); }
};
// Of a part of a module as a file has it, and back.
LoraRows from_stored(const StoredLora& stored, const ModuleRows& rows);
StoredLora to_stored(const LoraRows& lora, const ModuleRows& rows);

// A LoRA of a fused module as LoRAs of its parts, the rows between each of `bounds` and the next. One whose up is block
// diagonal, as joined() makes it, falls into the LoRAs of which it consists; else the parts share the down. Both are
// exact. Parts that it does not reach are left out.
std::vector<LoraRows> split_at(const LoraRows& fused, const std::vector<int64_t>& bounds);
// LoRAs of a module's parts, in their order, as one on the rows from `first` to `end`, with the same changes. Where
// their downs and alphas are equal and they fill the rows they share them; else the ranks add, up is block diagonal,
// and alpha keeps the scale.
LoraRows joined(const std::vector<LoraRows>& parts, int64_t first, int64_t end);
// The sum of LoRAs on the same rows: downs are stacked, and each up has its scale in it, so that alpha is the rank.
LoraRows summed(const std::vector<LoraRows>& loras);

// The same adapter in another format. Throws Error that names modules for which that has no names, algorithms that it
// does not have, and those whose parts it has apart where only a LoRA can be split. Not for gguf.
AdapterFile converted(const AdapterFile& file, const AdapterModules& modules, AdapterFormat format);

// A language model's LoRA as llama.cpp loads it: bits stay, but where modules have several alphas those that are not
// the commonest one go into the up factors, since the file has one. `model` tells architecture and heads. Throws Error
// for all else. Atomic.
void write_gguf_adapter(const AdapterFile& file, const Checkpoint& model, const std::filesystem::path& path);
// Such a file, under PEFT's names.
AdapterFile read_gguf_adapter(const std::filesystem::path& path, const Checkpoint& model);
// The same LoRAs, of which those in GGUF files are read for a language model.
std::vector<LoraFile> with_gguf_read(std::vector<LoraFile> loras, const Checkpoint& model);

struct AdapterSize {
  int64_t rank = 0;   // the most; 0: as it is
  double energy = 0;  // the share of the sum of squared singular values that is kept; 0: all
};
// Each module's LoRA with the nearest product of a lower rank, by the SVD of up down; a convolution's down is the
// matrix [r, in * kh * kw]. The scale stays: alpha is the new rank times the old scale. Modules that keep their rank
// keep their bits. No module gets more than the SVD's bound (Eckart and Young, 1936) but for rounding to the factors'
// dtypes. Throws Error for other algorithms than LoRA.
AdapterFile resized(const AdapterFile& file, const AdapterSize& size);

struct AdapterMerge {
  std::vector<LoraFile> files;
  std::optional<AdapterFormat> format = {};  // the first file's unless given
  std::optional<Checkpoint> model = {};      // recognised unless given, or unknown where all files spell it alike
  std::optional<int64_t> rank = {};          // exact, ranks add, unless given
};
// One LoRA that changes a model as all of them do. Files of any spelling meet, of fused modules and of their parts.
AdapterFile merged(const AdapterMerge& merge);

}  // namespace wick
