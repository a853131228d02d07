#include "wick/pipelines/quantized_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "wick/backend/cpu/parallel.h"
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
#include "wick/nn/recognise.h"
#include "wick/ops/elementwise.h"
#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/model_folder.h"
#include "wick/pipelines/stored_tensors.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Sink = SafetensorsGroup::Sink;
using Bytes = std::vector<char>;

constexpr std::string_view kWeight = ".weight", kComfyPrefix = "model.diffusion_model.";

// Whose rules a file keeps: which scales fp8 has, and which layers are quantised.
enum class Reader { comfy, newest_comfy, diffusers, transformers };

// A tensor of a file, and its bytes where they are known beforehand.
struct Part {
  SafetensorsEntry entry;
  std::optional<Bytes> bytes = {};
};

Bytes bytes_of(std::span<const float> values) {
  const char* const data = reinterpret_cast<const char*>(values.data());
  return {data, data + values.size_bytes()};
}

// A string as JSON in a tensor of bytes, as both programs have it.
Part as_bytes(const std::string& name, const std::string& text) {
  return {{name, "U8", {int64_t(text.size())}}, Bytes(text.begin(), text.end())};
}

Part of_floats(const std::string& name, std::span<const float> values) {
  return {{name, "F32", {int64_t(values.size())}}, bytes_of(values)};
}

// One matrix, which all threads quantise piece by piece: codes of a whole model would not fit into memory.
class Matrix {
 public:
  Matrix(std::string name, const SafetensorsFile& file, DType dtype, Reader reader)
      : name_(std::move(name)), file_(file), dtype_(dtype), info_(file.tensors().at(name_)), reader_(reader) {}

  SafetensorsGroup group() const {
    SafetensorsGroup group;
    const auto all = std::make_shared<const std::vector<Part>>(parts());
    for (const Part& part : *all) group.entries.push_back(part.entry);
    group.write = [matrix = *this, all](const Sink& sink) {
      for (size_t i = 0; i < all->size(); ++i)
        if (const auto& bytes = (*all)[i].bytes) sink(i, 0, bytes->data(), bytes->size());
      matrix.has_one_scale() ? matrix.write_with_one_scale(sink) : matrix.write_rows(sink, !(*all)[kScales].bytes);
    };
    return group;
  }

 private:
  static constexpr size_t kCodes = 0, kScales = 1;  // among the parts
  static constexpr int64_t kPiece = 1 << 18;        // elements, that of few rows at least

  bool has_one_scale() const {
    return dtype_ == DType::fp8 && (reader_ == Reader::comfy || reader_ == Reader::newest_comfy);
  }
  int64_t rows() const { return info_.shape[0]; }
  int64_t cols() const { return info_.shape.numel() / rows(); }
  // nf4_double has nf4's codes.
  RowLayout layout() const { return row_layout(row_dtype(), cols()); }
  DType row_dtype() const { return dtype_ == DType::nf4_double ? DType::nf4 : dtype_; }

  // Calls f(first row, x [rows, cols]) for all pieces, on all threads.
  template <class F>
  void for_pieces(const F& f) const {
    const int64_t most = std::max<int64_t>(1, kPiece / cols());
    parallel_tasks((rows() + most - 1) / most, [&](int64_t i) {
      const int64_t first = i * most;
      f(first, piece(first, std::min(most, rows() - first)));
    });
  }

  Tensor piece(int64_t first, int64_t count) const {
    const Tensor stored = Tensor::empty({count, cols()}, *info_.dtype, host_memory());
    const size_t row = size_t(cols()) * size_of(*info_.dtype);
    file_.bytes(name_)(stored.data<char>(), size_t(first) * row, size_t(count) * row);
    Tensor x = cast(stored, DType::f32);
    check_finite(x, "holds values that are not finite numbers: the model is damaged");
    if (dtype_ == DType::int8) {
      x = cast(cast(x, DType::f16), DType::f32);
      check_finite(x, "holds values too large for f16, to which bitsandbytes rounds before int8");
    }
    return x;
  }

  void write_rows(const Sink& sink, bool with_scales) const {
    const RowLayout at = layout();
    const size_t code_bytes = size_t(cols() * row_format(row_dtype()).bits / 8), scale_bytes = size_t(4 * at.count);
    for_pieces([&](int64_t first, const Tensor& x) {
      const size_t count = size_t(x.dim(0));
      Bytes all(count * size_t(at.bytes));
      quantize_rows(all.data(), row_dtype(), x.data<float>(), x.dim(0), cols());
      const auto put = [&](size_t part, size_t begin, size_t bytes) {
        Bytes together;
        for (size_t row = 0; row < count; ++row) {
          const auto from = all.begin() + ptrdiff_t(row * size_t(at.bytes) + begin);
          together.insert(together.end(), from, from + ptrdiff_t(bytes));
        }
        sink(part, uint64_t(first) * bytes, together.data(), together.size());
      };
      put(kCodes, 0, code_bytes);
      if (with_scales) put(kScales, size_t(at.scales), scale_bytes);
    });
  }

  // As comfy-kitchen does, in f32: it multiplies with the reciprocal of the scale.
  void write_with_one_scale(const Sink& sink) const {
    const float largest = std::ranges::max(largest_of_runs(cols()));
    const float scale = largest == 0 ? 1 : largest / kFp8Largest, inverse = 1 / scale;
    sink(kScales, 0, &scale, sizeof scale);
    for_pieces([&](int64_t first, const Tensor& x) {
      Bytes codes(size_t(x.numel()));
      std::transform(x.data<float>(), x.data<float>() + x.numel(), codes.begin(),
                     [=](float value) { return char(f32_to_e4m3(value * inverse)); });
      sink(kCodes, uint64_t(first * cols()), codes.data(), codes.size());
    });
  }

  // The largest magnitudes of elements that lie together.
  std::vector<float> largest_of_runs(int64_t run) const {
    std::vector<float> all(size_t(info_.shape.numel() / run));
    for_pieces([&](int64_t first, const Tensor& x) {
      float* largest = &all[size_t(first * cols() / run)];
      for (const float *at = x.data<float>(), *const end = at + x.numel(); at < end; at += run, ++largest)
        for (int64_t i = 0; i < run; ++i) *largest = std::max(*largest, std::abs(at[i]));
    });
    return all;
  }

  void check_finite(const Tensor& x, const char* what) const {
    const float* values = x.data<float>();
    check(std::all_of(values, values + x.numel(), [](float value) { return std::isfinite(value); }), "{}: {} {}",
          file_.path().string(), quote(name_), what);
  }

  std::string layer() const { return name_.substr(0, name_.size() - kWeight.size()); }

  // Codes, then scales, which are made as they are written where they have no bytes yet.
  std::vector<Part> parts() const {
    switch (dtype_) {
      case DType::fp8:
        return fp8();
      case DType::int8:
        return {{{name_, "I8", info_.shape}},
                {{layer() + ".SCB", "F32", {rows()}}},
                {{layer() + ".weight_format", "U8", {}}, Bytes(1, 0)}};  // 0: rows in their order
      default:
        return nf4();
    }
  }

  std::vector<Part> fp8() const {
    const Shape scales = has_one_scale() ? Shape{} : Shape{rows(), 1};
    const char* const scale = reader_ == Reader::comfy ? ".scale_weight" : ".weight_scale";
    std::vector<Part> all = {{{name_, "F8_E4M3", info_.shape}}, {{layer() + scale, "F32", scales}}};
    if (reader_ == Reader::newest_comfy)
      all.push_back(as_bytes(layer() + ".comfy_quant", R"({"format": "float8_e4m3fn"})"));
    return all;
  }

  std::vector<Part> nf4() const {
    const int64_t runs = info_.shape.numel() / kNf4Run;
    const Part codes{{name_, "U8", {info_.shape.numel() / 2, 1}}},
        map = of_floats(name_ + ".quant_map", kNf4Map.values);
    if (dtype_ == DType::nf4) return {codes, {{name_ + ".absmax", "F32", {runs}}}, map, state("")};
    // The mean stands in the state, whose size is in the header: these scales are made now, and kept.
    const NestedMagnitudes made = nested(largest_of_runs(kNf4Run));
    std::string mean = fmt::format("{}", double(made.mean));
    if (mean.find_first_of(".e") == mean.npos) mean += ".0";
    return {codes,
            {{name_ + ".absmax", "U8", {runs}}, Bytes(made.codes.begin(), made.codes.end())},
            map,
            of_floats(name_ + ".nested_absmax", made.scales),
            of_floats(name_ + ".nested_quant_map", kSignedMap.values),
            state(fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})", kNestedRun,
                              mean))};
  }

  // As Python's json writes it.
  Part state(const std::string& nested) const {
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
void add_namesakes(std::set<std::string>& in_blocks, const StoredTensors& tensors) {
  std::set<std::string> namesakes;
  for (const std::string& name : in_blocks) {
    const size_t layer = name.rfind('.', name.size() - kWeight.size() - 1);
    const std::string last = layer == name.npos ? name : name.substr(layer + 1);
    if (tensors.contains(last)) namesakes.insert(last);
  }
  in_blocks.merge(namesakes);
}

// The tensor that tells ComfyUI of ".scale_weight", where the denoiser's names begin. Its two elements make ComfyUI
// multiply in the dtype of activations; with any other number it multiplies in fp8 where the device can, and until 0.3
// it clips activations at 448 then. The values have no meaning.
SafetensorsGroup marker(const std::string& matrix) {
  const std::string prefix(matrix.starts_with(kComfyPrefix) ? kComfyPrefix : "");
  return {{{prefix + "scaled_fp8", "F8_E4M3", {2}}}, [](const Sink& sink) { sink(0, 0, "\0", 2); }};
}

// All matrices of the denoiser, which is the file, or the part of it whose names begin with ComfyUI's prefix.
std::set<std::string> all_matrices(const Checkpoint& denoiser, const std::set<std::string>& in_blocks) {
  const std::string_view prefix = in_blocks.begin()->starts_with(kComfyPrefix) ? kComfyPrefix : "";
  std::vector<std::string> others;  // of networks beside it
  for (const auto& [network, begin] : networks_in(open_source(denoiser.path())))
    if (begin != prefix) others.push_back(begin);
  std::set<std::string> matrices;
  for (const auto& [name, file] : stored_tensors(denoiser.path())) {
    const auto begins = [&name = name](const std::string& other) { return name.starts_with(other); };
    if (name.starts_with(prefix) && name.ends_with(kWeight) && file.tensors().at(name).shape.rank() == 2 &&
        std::ranges::none_of(others, begins))
      matrices.insert(name);
  }
  return matrices;
}

class Conversion {
 public:
  // `quantised` are the tensors' names.
  Conversion(const Checkpoint& network, std::set<std::string> quantised, DType dtype, Reader reader)
      : files_(stored_tensors(network.path())), dtype_(dtype), reader_(reader) {
    if (reader == Reader::diffusers) add_namesakes(quantised, files_);
    for (const auto& [name, file] : files_)
      check(!goes_with_fp8(name) && !goes_with_bitsandbytes(name),
            "{}: is quantised already, as its tensor {} says; convert the model of which it was made",
            file.path().string(), quote(name));
    for (const auto& [name, file] : files_) {
      quantised.contains(name) ? add(name, file) : keep(name, file);
      for (const auto& [key, value] : file.metadata()) metadata_.emplace(key, value);
    }
    check(written_.matrices > 0, "{}: no matrix of its blocks can be {}", network.name(), name_of(dtype));
    if (reader == Reader::comfy && dtype == DType::fp8) groups_.push_back(marker(*quantised.begin()));
  }

  void write(const fs::path& to) const { save_safetensors(to, groups_, metadata_); }
  void write_shards(const fs::path& to, uint64_t most) const { save_shards(to, groups_, metadata_, most); }
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
    groups_.push_back(Matrix(name, file, dtype_, reader_).group());
  }

  void keep(const std::string& name, const SafetensorsFile& file) {
    if (name.ends_with(kWeight) && file.tensors().at(name).shape.rank() == 2)
      kept_layers_.insert(name.substr(0, name.size() - kWeight.size()));
    groups_.push_back(copied(name, file));
  }

  StoredTensors files_;
  DType dtype_;
  Reader reader_;
  std::vector<SafetensorsGroup> groups_;
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

void write_denoiser_folder(const Conversion& conversion, const Checkpoint& denoiser, const fs::path& to, DType dtype) {
  nlohmann::json config = read_json(denoiser.config_file());
  config["quantization_config"] = bitsandbytes_config(conversion.kept_layers(), dtype, "bfloat16");
  write_folder(to, [&] {
    begin_folder(to, kNetworkConfig);
    conversion.write(to / "diffusion_pytorch_model.safetensors");
    write_file_atomically(to / kNetworkConfig, to_text(std::move(config)));
  });
}

// ComfyUI of before December 2025 makes fp8 of all matrices as soon as one has a `.scale_weight`: those without a scale
// would be rounded as they are, so all have one. In a file with diffusers' names no ComfyUI takes scales.
Weights::Quantized write_denoiser(const Checkpoint& from, const fs::path& to, const QuantizedOptions& options) {
  const DType dtype = options.dtype;
  const DiffusionFamily& family = diffusion_family(from);
  const Checkpoint denoiser = from.component(family.denoiser);
  check(denoiser.path().extension() != ".gguf", "{}: is a GGUF file; convert a safetensors file", denoiser.name());
  const bool is_folder = has_denoiser_folder(from), for_diffusers = is_folder && dtype != DType::fp8;
  const bool is_newest = is_folder || options.fp8_layout == Fp8Layout::comfy_quant;
  const Reader reader = for_diffusers ? Reader::diffusers : is_newest ? Reader::newest_comfy : Reader::comfy;
  std::set<std::string> quantised = family.in_blocks(from);
  if (dtype == DType::fp8 && reader == Reader::comfy) quantised = all_matrices(denoiser, quantised);
  const Conversion conversion(denoiser, std::move(quantised), dtype, reader);
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

Weights::Quantized write_language_model_folder(const Checkpoint& from, const fs::path& to,
                                               const QuantizedOptions& options) {
  const DType dtype = options.dtype;
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
    write_language_model(
        from, to, to_text(std::move(config)),
        [&](const fs::path& file) { conversion.write_shards(file, options.shard_bytes); }, options.chat_template);
  });
  return conversion.written();
}

}  // namespace

Weights::Quantized write_quantized(const Checkpoint& from, const fs::path& to, const QuantizedOptions& options) {
  return kind_of(from) == ModelKind::text ? write_language_model_folder(from, to, options)
                                          : write_denoiser(from, to, options);
}

bool has_denoiser_folder(const Checkpoint& from) {
  return fs::is_directory(from.component(diffusion_family(from).denoiser).path());
}

std::string quantized_readers(const Checkpoint& from, const QuantizedOptions& options) {
  const bool is_fp8 = options.dtype == DType::fp8, is_int8 = options.dtype == DType::int8;
  if (kind_of(from) == ModelKind::text)
    return is_fp8 ? "vLLM and transformers read it, with compressed-tensors"
                  : "transformers reads it, with bitsandbytes";
  if (has_denoiser_folder(from))
    return is_fp8 ? "Wick alone reads it: of files with diffusers' names ComfyUI takes no scales, and draws noise; for "
                    "ComfyUI convert a single file of the model"
                  : "diffusers reads it, with bitsandbytes; ComfyUI does not";
  if (is_int8)
    return "Wick alone reads it: every ComfyUI draws noise from it, without an error; for ComfyUI use --dtype fp8";
  if (!is_fp8) return "ComfyUI itself does not read it, and ends with an error; for ComfyUI use --dtype fp8";
  return options.fp8_layout == Fp8Layout::scaled_fp8
             ? "ComfyUI reads it, since the end of 2024 (0.3.64 and 0.33 were tried)"
             : "ComfyUI reads it from 0.4 on (December 2025); an older one draws noise from it, without an error";
}

}  // namespace wick
