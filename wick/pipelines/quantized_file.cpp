#include "wick/pipelines/quantized_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "wick/core/dynamic_map.h"
#include "wick/core/row_formats.h"
#include "wick/io/count.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/io/safetensors_writer.h"
#include "wick/models/llama.h"
#include "wick/nn/bitsandbytes.h"
#include "wick/nn/fp8.h"
#include "wick/ops/elementwise.h"
#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/model_folder.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Sink = SafetensorsEntry::Sink;
using Bytes = std::vector<char>;

constexpr std::string_view kWeight = ".weight";

// Whose rules a file keeps: which scales fp8 has, and which layers are quantised.
enum class Reader { comfy, diffusers, transformers };

// The files of a network, by the names of its tensors.
std::map<std::string, SafetensorsFile> tensors_of(const Checkpoint& network) {
  const fs::path path = fs::is_directory(network.path())
                            ? weights_in(network.path()).value_or(network.path() / "model.safetensors")
                            : network.path();
  std::map<std::string, SafetensorsFile> files;
  if (path.extension() != ".json") {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [name, info] : file.tensors()) files.emplace(name, file);
    return files;
  }
  std::map<std::string, SafetensorsFile> shards;
  for (const auto& [name, shard] : read_safetensors_index(path)) {
    const auto file = shards.try_emplace(shard, SafetensorsFile::open(path.parent_path() / shard)).first->second;
    check(file.has(name), "{}: has no tensor {}, which {} says is there", file.path().string(), quote(name),
          path.filename().string());
    files.emplace(name, file);
  }
  return files;
}

SafetensorsEntry as_stored(const std::string& name, const SafetensorsFile& file) {
  const TensorInfo& info = file.tensors().at(name);
  return {name, info.dtype_name, info.shape, [read = file.bytes(name), size = size_t(*info.bytes)](const Sink& sink) {
            Bytes piece;
            for (size_t at = 0; at < size; at += piece.size()) {
              piece.resize(std::min(size - at, size_t{1} << 20));
              read(piece.data(), at, piece.size());
              sink(piece.data(), piece.size());
            }
          }};
}

// A string as JSON in a tensor of bytes, as both programs have it.
SafetensorsEntry as_bytes(const std::string& name, const std::string& text) {
  return {name, "U8", {int64_t(text.size())}, [text](const Sink& sink) { sink(text.data(), text.size()); }};
}

SafetensorsEntry of_floats(const std::string& name, std::span<const float> values) {
  return {
      name, "F32", {int64_t(values.size())}, [values](const Sink& sink) { sink(values.data(), values.size_bytes()); }};
}

// One matrix, quantised anew for each of its entries: codes of a whole model would not fit into memory.
class Matrix {
 public:
  Matrix(std::string name, const SafetensorsFile& file, DType dtype, Reader reader)
      : name_(std::move(name)), file_(file), dtype_(dtype), info_(file.tensors().at(name_)), reader_(reader) {}

  // What has a scale for each row is laid out so; all else as one row of the whole matrix, whose scales lie together.
  int64_t rows() const { return dtype_ == DType::int8 || has_fp8_rows() ? info_.shape[0] : 1; }
  int64_t cols() const { return info_.shape.numel() / rows(); }
  RowLayout layout() const { return row_layout(dtype_, cols()); }

  Bytes quantized() const {
    Tensor x = cast(file_.load(name_), DType::f32);
    check_finite(x, "holds values that are not finite numbers: the model is damaged");
    if (dtype_ == DType::int8) {
      x = cast(cast(x, DType::f16), DType::f32);
      check_finite(x, "holds values too large for f16, to which bitsandbytes rounds before int8");
    }
    Bytes all(size_t(rows() * layout().bytes));
    if (dtype_ == DType::fp8 && !has_fp8_rows())
      quantize_fp8(all.data(), all.data() + layout().scales, x);
    else
      quantize_rows(all.data(), dtype_, x.data<float>(), rows(), cols());
    return all;
  }

  std::vector<SafetensorsEntry> entries() const {
    switch (dtype_) {
      case DType::fp8:
        return has_fp8_rows() ? fp8_rows() : fp8();
      case DType::int8:
        return int8();
      default:
        return nf4();
    }
  }

 private:
  bool has_fp8_rows() const { return dtype_ == DType::fp8 && reader_ == Reader::transformers; }

  // As comfy-kitchen does, in f32: it multiplies with the reciprocal of the scale.
  static void quantize_fp8(char* codes, char* scale_bytes, const Tensor& x) {
    const std::span<const float> values(x.data<float>(), size_t(x.numel()));
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    const float scale = largest == 0 ? 1 : largest / 448, inverse = 1 / scale;
    for (const float value : values) *codes++ = char(f32_to_e4m3(value * inverse));
    std::memcpy(scale_bytes, &scale, sizeof scale);
  }

  void check_finite(const Tensor& x, const char* what) const {
    const float* values = x.data<float>();
    check(std::all_of(values, values + x.numel(), [](float value) { return std::isfinite(value); }), "{}: {} {}",
          file_.path().string(), quote(name_), what);
  }

  std::string layer() const { return name_.substr(0, name_.size() - kWeight.size()); }

  // A part of each row, of `count` bytes from `begin` on.
  SafetensorsEntry part(const std::string& name, const char* dtype, const Shape& shape, int64_t begin,
                        int64_t count) const {
    return {name, dtype, shape, [matrix = *this, begin, count](const Sink& sink) {
              const Bytes all = matrix.quantized();
              for (int64_t row = 0; row < matrix.rows(); ++row)
                sink(all.data() + row * matrix.layout().bytes + begin, size_t(count));
            }};
  }

  std::vector<SafetensorsEntry> fp8() const {
    return {part(name_, "F8_E4M3", info_.shape, 0, cols()),
            part(layer() + ".weight_scale", "F32", {}, layout().scales, 4),
            as_bytes(layer() + ".comfy_quant", R"({"format": "float8_e4m3fn"})")};
  }

  std::vector<SafetensorsEntry> fp8_rows() const {
    return {part(name_, "F8_E4M3", info_.shape, 0, cols()),
            part(layer() + ".weight_scale", "F32", {info_.shape[0], 1}, layout().scales, 4)};
  }

  std::vector<SafetensorsEntry> int8() const {
    return {part(name_, "I8", info_.shape, 0, cols()),
            part(layer() + ".SCB", "F32", {info_.shape[0]}, layout().scales, 4),
            {layer() + ".weight_format", "U8", {}, [](const Sink& sink) { sink("", 1); }}};  // 0: rows in their order
  }

  std::vector<SafetensorsEntry> nf4() const {
    const RowLayout at = layout();
    std::vector<SafetensorsEntry> all = {part(name_, "U8", {info_.shape.numel() / 2, 1}, 0, cols() / 2),
                                         of_floats(name_ + ".quant_map", kNf4Map.values)};
    if (dtype_ == DType::nf4_double) {
      for (SafetensorsEntry& entry : nested_scales()) all.push_back(std::move(entry));
    } else {
      all.push_back(part(name_ + ".absmax", "F32", {at.count}, at.scales, 4 * at.count));
      all.push_back(state(""));
    }
    return all;
  }

  // The mean stands in the state, whose size is in the header: the scales are made now, and kept.
  std::vector<SafetensorsEntry> nested_scales() const {
    const RowLayout at = layout();
    const int64_t count = (at.count + kNestedRun - 1) / kNestedRun;
    const Bytes row = quantized();
    const auto scales = std::make_shared<const Bytes>(row.begin() + at.scales, row.end());
    NestedScales header;
    std::memcpy(&header, row.data() + at.nested, sizeof header);
    std::string mean = fmt::format("{}", double(header.mean));
    if (mean.find_first_of(".e") == mean.npos) mean += ".0";
    return {{name_ + ".absmax", "U8", {at.count}, [=](const Sink& sink) { sink(scales->data(), size_t(at.count)); }},
            {name_ + ".nested_absmax",
             "F32",
             {count},
             [=](const Sink& sink) {
               sink(scales->data() + (at.nested - at.scales) + int64_t(sizeof header), size_t(4 * count));
             }},
            of_floats(name_ + ".nested_quant_map", kSignedMap.values),
            state(fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})", kNestedRun,
                              mean))};
  }

  // As Python's json writes it.
  SafetensorsEntry state(const std::string& nested) const {
    const char* dtype = info_.dtype == DType::f32 ? "float32" : info_.dtype == DType::f16 ? "float16" : "bfloat16";
    return as_bytes(name_ + ".quant_state.bitsandbytes__nf4",
                    fmt::format(R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}, {}]{}}})",
                                kNf4Run, dtype, info_.shape[0], info_.shape[1], nested));
  }

  std::string name_;
  SafetensorsFile file_;
  DType dtype_;
  TensorInfo info_;
  Reader reader_;
};

// diffusers tells layers that stay by the last part of their names too: an outermost one that is called like some in
// the blocks (FLUX's proj_out) cannot stay.
void add_namesakes(std::set<std::string>& in_blocks, const std::map<std::string, SafetensorsFile>& tensors) {
  std::set<std::string> namesakes;
  for (const std::string& name : in_blocks) {
    const size_t layer = name.rfind('.', name.size() - kWeight.size() - 1);
    const std::string last = layer == name.npos ? name : name.substr(layer + 1);
    if (tensors.contains(last)) namesakes.insert(last);
  }
  in_blocks.merge(namesakes);
}

class Conversion {
 public:
  Conversion(const Checkpoint& network, std::set<std::string> in_blocks, DType dtype, Reader reader)
      : files_(tensors_of(network)), dtype_(dtype), reader_(reader) {
    if (reader == Reader::diffusers) add_namesakes(in_blocks, files_);
    for (const auto& [name, file] : files_)
      check(!goes_with_fp8(name) && !goes_with_bitsandbytes(name),
            "{}: is quantised already, as its tensor {} says; convert the model of which it was made",
            file.path().string(), quote(name));
    for (const auto& [name, file] : files_) {
      in_blocks.contains(name) ? add(name, file) : keep(name, file);
      for (const auto& [key, value] : file.metadata()) metadata_.emplace(key, value);
    }
    check(written_.matrices > 0, "{}: no matrix of its blocks can be {}", network.name(), name_of(dtype));
  }

  void write(const fs::path& to) const { save_safetensors(to, entries_, metadata_); }
  Weights::Quantized written() const { return written_; }
  // Layers whose weights stay: the readers must not make quantised ones of them.
  const std::set<std::string>& kept_layers() const { return kept_layers_; }

 private:
  void add(const std::string& name, const SafetensorsFile& file) {
    const TensorInfo& info = file.tensors().at(name);
    check(name.ends_with(kWeight) && info.dtype && is_float(*info.dtype),
          "{}: {} is {}; Wick quantises floats of 32 and 16 bits: convert a file of those", file.path().string(),
          quote(name), info.dtype_name);
    if (info.shape[1] % block_of(dtype_).elements != 0) {
      ++written_.kept;
      return keep(name, file);
    }
    ++written_.matrices;
    for (SafetensorsEntry& entry : Matrix(name, file, dtype_, reader_).entries()) entries_.push_back(std::move(entry));
  }

  void keep(const std::string& name, const SafetensorsFile& file) {
    if (name.ends_with(kWeight) && file.tensors().at(name).shape.rank() == 2)
      kept_layers_.insert(name.substr(0, name.size() - kWeight.size()));
    entries_.push_back(as_stored(name, file));
  }

  std::map<std::string, SafetensorsFile> files_;
  DType dtype_;
  Reader reader_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::set<std::string> kept_layers_;
  Weights::Quantized written_;
};

// As transformers and diffusers write their BitsAndBytesConfig.
nlohmann::json bitsandbytes_config(const std::set<std::string>& kept_layers, DType dtype,
                                   const std::string& computed_in) {
  const bool int8 = dtype == DType::int8;
  return {{"quant_method", "bitsandbytes"},
          {"load_in_8bit", int8},
          {"load_in_4bit", !int8},
          {"_load_in_8bit", int8},
          {"_load_in_4bit", !int8},
          {"llm_int8_skip_modules", kept_layers},
          {"llm_int8_threshold", 6.0},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", dtype == DType::nf4_double},
          {"bnb_4bit_compute_dtype", computed_in},
          {"bnb_4bit_quant_storage", "uint8"}};
}

// compressed-tensors' FP8 with a scale a row of weights, and one a token of activations where the reader multiplies in
// fp8.
nlohmann::json compressed_tensors_config(const std::set<std::string>& kept_layers) {
  const auto codes = [](const char* strategy, bool dynamic) {
    return nlohmann::json{
        {"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}, {"dynamic", dynamic}};
  };
  const nlohmann::json group = {{"targets", {"Linear"}},
                                {"weights", codes("channel", false)},
                                {"input_activations", codes("token", true)},
                                {"output_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"},  {"format", "float-quantized"}, {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}}, {"ignore", kept_layers},       {"kv_cache_scheme", nullptr}};
}

// Leaves no half of a model where there was none.
void write_folder(const fs::path& to, const std::function<void()>& write) {
  const bool is_new = !fs::exists(to);
  try {
    write();
  } catch (...) {
    std::error_code ignored;
    if (is_new) fs::remove_all(to, ignored);
    throw;
  }
}

void write_denoiser_folder(const Conversion& conversion, const Checkpoint& denoiser, const fs::path& to, DType dtype) {
  nlohmann::json config = read_json(denoiser.config_file());
  config["quantization_config"] = bitsandbytes_config(conversion.kept_layers(), dtype, "bfloat16");
  write_folder(to, [&] {
    begin_folder(to, kNetworkConfig);
    conversion.write(to / "diffusion_pytorch_model.safetensors");
    write_file_atomically(to / kNetworkConfig, to_text(std::move(config)));
  });
}

Weights::Quantized write_denoiser(const Checkpoint& from, const fs::path& to, DType dtype) {
  const DiffusionFamily& family = diffusion_family(from);
  const Checkpoint denoiser = from.component(family.denoiser);
  check(denoiser.path().extension() != ".gguf", "{}: is a GGUF file; convert a safetensors file", denoiser.name());
  const bool for_diffusers = fs::is_directory(denoiser.path()) && dtype != DType::fp8;
  const Conversion conversion(denoiser, family.in_blocks(from), dtype,
                              for_diffusers ? Reader::diffusers : Reader::comfy);
  for_diffusers ? write_denoiser_folder(conversion, denoiser, to, dtype) : conversion.write(to);
  return conversion.written();
}

// Throws Error unless the model has all its tensors.
std::set<std::string> matrices_in_layers(const Checkpoint& model, DType dtype) {
  const Weights weights = model.weights();
  const auto in_layers = llama_weights(dtype, cpu_backend()).quantizes;
  std::set<std::string> names;
  for (const auto& [name, shape] : llama_tensors(LlamaConfig::read(model))) {
    weights.stored_dtype(name, shape);
    if (shape.rank() == 2 && in_layers(name)) names.insert(name);
  }
  return names;
}

// That of a transformers config, which spells its key in two ways.
std::string dtype_in(const nlohmann::json& config, const std::string& where) {
  for (const char* key : {"dtype", "torch_dtype"})
    if (const nlohmann::json* found = find_member(config, key)) return as<std::string>(*found, where + ": " + key);
  return "bfloat16";
}

Weights::Quantized write_language_model_folder(const Checkpoint& from, const fs::path& to, DType dtype) {
  check(!from.is_gguf(), "{}: is a GGUF file; {} is written of a transformers folder: convert one", from.name(),
        name_of(dtype));
  const Conversion conversion(from, matrices_in_layers(from, dtype), dtype, Reader::transformers);
  std::set<std::string> kept_layers = conversion.kept_layers();
  kept_layers.erase("model.embed_tokens");  // a table, no linear layer
  kept_layers.insert("lm_head");            // which is not stored where it is the table
  nlohmann::json config = read_json(from.config_file());
  config["quantization_config"] =
      dtype == DType::fp8 ? compressed_tensors_config(kept_layers)
                          : bitsandbytes_config(kept_layers, dtype, dtype_in(config, from.config_file().string()));
  write_folder(to, [&] {
    write_language_model(from, to, to_text(std::move(config)), [&](const fs::path& file) { conversion.write(file); });
  });
  return conversion.written();
}

}  // namespace

Weights::Quantized write_quantized(const Checkpoint& from, const fs::path& to, DType dtype) {
  return kind_of(from) == ModelKind::text ? write_language_model_folder(from, to, dtype)
                                          : write_denoiser(from, to, dtype);
}

}  // namespace wick
