#include "wick/train/merge.h"

#include <map>
#include <string_view>
#include <utility>

#include "wick/core/blocks.h"
#include "wick/io/file.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/models/llama.h"
#include "wick/nn/gguf_model.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"
#include "wick/train/model_folder.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// What LoRAs change, by the names of transformers.
class Changes {
 public:
  explicit Changes(const std::vector<LoraFile>& loras) : adapter_(llama_module_names()) {
    for (const LoraFile& file : loras) adapter_.add_file(file.path, file.strength);
  }

  // To be told of every tensor once.
  void look_at(const std::string& name, const Shape& shape) {
    constexpr std::string_view kWeight = ".weight";
    if (shape.rank() != 2 || !name.ends_with(kWeight)) return;
    const LoraSite site{"llama." + name.substr(0, name.size() - kWeight.size()), {shape[1], shape[0]}};
    if (const auto lora = adapter_.match({site})) loras_.emplace(name, *lora);
  }
  void check_complete() const { adapter_.check_complete(); }

  bool has(const std::string& name) const { return loras_.contains(name); }
  Tensor merged(const std::string& name, const Tensor& w) const {
    const Lora& lora = loras_.at(name);
    const LoraPart& part = lora.parts.front();
    return cast(w, DType::f32) + matmul(part.up_values, lora.down) * part.scale;
  }

 private:
  Adapter adapter_;
  std::map<std::string, Lora> loras_;
};

DType checked_dtype(DType stored, std::optional<DType> asked, const Shape& shape, const std::string& where) {
  const DType dtype = asked.value_or(stored);
  check(!is_block(dtype) || can_quantize_to(dtype),
        "{}: is {}, to which Wick does not quantise; choose another --dtype", where, name_of(dtype));
  check(!is_block(dtype) || shape[1] % block_of(dtype).elements == 0,
        "{}: has rows of {} elements, which are not whole blocks of {}", where, shape[1], name_of(dtype));
  return dtype;
}

void merge_folder(const fs::path& from, Changes& changes, const fs::path& to, std::optional<DType> dtype) {
  const std::vector<fs::path> files = weight_files(from);
  for (const fs::path& path : files) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [name, info] : file.tensors()) changes.look_at(name, info.shape);
  }
  changes.check_complete();
  check(!dtype || !is_block(*dtype), "--dtype: a transformers folder holds f32, f16 or bf16, not {}; a GGUF file does",
        dtype ? name_of(*dtype) : "");
  make_directories(to);
  for (const fs::path& path : files) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, info] : file.tensors()) {
      const Tensor stored = file.load(name);
      tensors[name] = changes.has(name) ? cast(changes.merged(name, stored), dtype.value_or(stored.dtype())) : stored;
    }
    save_safetensors(to / path.filename(), tensors, file.metadata());
  }
  copy_model_files(from, to);
}

void merge_gguf(const fs::path& from, Changes& changes, const fs::path& to, std::optional<DType> dtype) {
  const GgufFile file = GgufFile::open(from);
  for (const auto& [name, info] : file.tensors())
    if (const std::string known = transformers_name(name); !known.empty()) changes.look_at(known, info.shape);
  changes.check_complete();
  std::vector<GgufEntry> entries;
  for (const auto& [name, info] : file.tensors()) {
    const std::string known = transformers_name(name), where = from.string() + ": " + name;
    check(info.dtype.has_value(), "{}: is of a type that Wick does not know", where);
    if (known.empty() || !changes.has(known)) {
      entries.push_back({name, *info.dtype, info.shape, [&file, here = name] { return file.load(here); }});
      continue;
    }
    const DType kept = checked_dtype(*info.dtype, dtype, info.shape, where);
    const int64_t heads = heads_of_pairs(file.metadata(), name);
    entries.push_back({name, kept, info.shape, [&file, &changes, here = name, known, kept, heads] {
                         Tensor w = cast(file.load(here), DType::f32);
                         if (heads > 0) w = pairs_to_halves(w, heads);
                         w = changes.merged(known, w);
                         return cast(heads > 0 ? halves_to_pairs(w, heads) : w, kept);
                       }});
  }
  save_gguf(to, file.metadata().entries(), entries);
}

}  // namespace

void merge_loras(const fs::path& from, const std::vector<LoraFile>& loras, const fs::path& to,
                 std::optional<DType> dtype) {
  std::error_code ignored;
  check(!fs::equivalent(from, to, ignored), "{}: is the model that is merged; choose another --output", to.string());
  Changes changes(loras);
  GgufFile::is_gguf(from) ? merge_gguf(from, changes, to, dtype) : merge_folder(from, changes, to, dtype);
}

}  // namespace wick
