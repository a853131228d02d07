#include "wick/nn/fp8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/json.h"
#include "wick/io/numbers.h"
#include "wick/io/quote.h"
#include "wick/nn/stored_codes.h"

namespace wick {
namespace {

constexpr std::string_view kWeight = ".weight";

using Formats = std::map<std::string, std::string>;  // by layer

std::string format_of(const nlohmann::json& layer, const std::string& where) {
  return as<std::string>(member(layer, "format", where), where + ": format");
}

// {"layers": {layer: {"format": ...}}}
Formats formats_in(const std::map<std::string, std::string>& metadata, const std::string& source) {
  const auto found = metadata.find("_quantization_metadata");
  Formats formats;
  if (found == metadata.end()) return formats;
  const std::string where = source + ": _quantization_metadata";
  const nlohmann::json json = parse_json(found->second, where);
  for (const auto& [layer, value] : as_object(member(json, "layers", where), where + ": layers").items())
    formats[layer] = format_of(value, where + ": " + quote(layer));
  return formats;
}

// Row-major, one for each `run` elements.
struct Scales {
  std::vector<float> values;
  int64_t run;

  void multiply(float* x, int64_t first, int64_t count) const {
    for (int64_t i = 0; i < count;) {
      const int64_t scale = (first + i) / run, end = std::min(count, (scale + 1) * run - first);
      for (const float value = values[size_t(scale)]; i < end; ++i) x[i] *= value;
    }
  }
};

bool is_narrow(const StoredTensor& tensor) { return tensor.dtype_name == "F8_E4M3" || tensor.dtype_name == "F8_E5M2"; }

// A file's tensors, with all that it says about the weight of a layer.
class Layers {
 public:
  Layers(const TensorSource& source, Formats formats) : source_(source), formats_(std::move(formats)) {
    for (const std::string& name : source.names())
      for (const std::string_view scale : kScales)
        if (name.ends_with(scale)) scaled_.emplace(kind_of(name.substr(0, name.size() - scale.size())), name);
  }

  std::optional<StoredTensor> find(const std::string& name, const Shape& wanted) const {
    const std::optional<StoredTensor> found = source_.find(name, wanted);
    if (!found) return {};
    std::shared_ptr<const Scales> scales;
    if (name.ends_with(kWeight)) {
      const std::string layer = name.substr(0, name.size() - kWeight.size());
      check_readable(layer, *found);
      scales = scales_of(layer, *found);
    }
    if (!scales && !is_narrow(*found)) return found;
    const int64_t bytes = is_narrow(*found) ? 1 : int64_t(size_of(*found->dtype));
    StoredTensor f32 = decoded(
        *found, {1, bytes},
        [convert = to_f32(found->dtype_name), scales](const std::byte* from, float* to, int64_t first, int64_t count) {
          convert(from, to, size_t(count));
          if (scales) scales->multiply(to, first, count);
        });
    if (found->dtype_name == "F8_E4M3")
      f32.rows = [codes = codes_of(*found, scales)](DType dtype) { return as_rows(codes, dtype); };
    return f32;
  }

 private:
  // Without a scale it is 1.
  static StoredCodes codes_of(const StoredTensor& stored, const std::shared_ptr<const Scales>& scales) {
    const int64_t run = scales ? scales->run : std::max<int64_t>(stored.shape.numel(), 1);
    return {DType::fp8, stored.shape, stored.bytes, run, [scales](int64_t first, int64_t count) {
              if (!scales) return std::vector<float>(size_t(count), 1.0f);
              const float* from = &scales->values[size_t(first)];
              return std::vector<float>(from, from + count);
            }};
  }

  std::string format(const std::string& layer) const {
    const std::string marker = layer + ".comfy_quant";
    if (const std::optional<StoredTensor> found = source_.find(marker, {})) {
      const std::string where = source_.name + ": " + quote(marker);
      check(found->dtype == DType::u8, "{} should be U8, found {}", where, found->dtype_name);
      const Tensor text = found->load(host_memory());
      return format_of(parse_json({text.data<char>(), size_t(text.numel())}, where), where);
    }
    // Some files leave out the prefix that their tensors have.
    for (std::string_view rest = layer;; rest.remove_prefix(rest.find('.') + 1)) {
      if (const auto named = formats_.find(std::string(rest)); named != formats_.end()) return named->second;
      if (rest.find('.') == rest.npos) return "";
    }
  }

  void check_readable(const std::string& layer, const StoredTensor& weight) const {
    const std::string name = layer + std::string(kWeight);
    const auto refuse = [&](std::string_view what) {
      fail("{}: \"{}\" is in {}; Wick reads floats of 32, 16 and 8 bits: use a file of those", source_.name, name,
           what);
    };
    const std::string format = this->format(layer);
    const bool known = format.empty() || format == "float8_e4m3fn" || format == "float8_e5m2";
    if (!known) refuse("the format " + quote(format));
    for (const char* scale : {".weight_scale_2", ".weight_scale_inv", ".pre_quant_scale"})
      if (source_.has(layer + scale)) refuse(fmt::format("a format with \"{}{}\"", layer, scale));
    if (!is_narrow(weight) || scale_name(layer)) return;
    check(format.empty(), "{}: has no tensor \"{}.weight_scale\", which the format {} of \"{}\" asks for", source_.name,
          layer, format, name);
    const auto other = scaled_.find(kind_of(layer));
    check(other == scaled_.end(),
          "{}: {} is {} without a scale, and a layer of its kind has one, {}: the file is damaged; "
          "copy it again",
          source_.name, quote(name), weight.dtype_name, quote(other == scaled_.end() ? "" : other->second));
  }

  std::optional<std::string> scale_name(const std::string& layer) const {
    for (const std::string_view scale : kScales)
      if (std::string name = layer + std::string(scale); source_.has(name)) return name;
    return {};
  }

  // The layer's name without its numbers: "model.layers..mlp.up_proj".
  static std::string kind_of(std::string layer) {
    std::erase_if(layer, [](char c) { return c >= '0' && c <= '9'; });
    return layer;
  }

  std::shared_ptr<const Scales> scales_of(const std::string& layer, const StoredTensor& weight) const {
    const std::optional<std::string> name = scale_name(layer);
    if (!name) return {};
    check(is_narrow(weight) || (weight.dtype && is_float(*weight.dtype) && weight.bytes),
          "{}: \"{}.weight\" is {} beside \"{}\"; Wick scales floats of 32, 16 and 8 bits: use a file of those",
          source_.name, layer, weight.dtype_name, *name);
    const StoredTensor scale = *source_.find(*name, {});
    check(scale.dtype && is_float(*scale.dtype), "{}: \"{}\" should be F32, F16 or BF16, found {}", source_.name, *name,
          scale.dtype_name);
    const Shape& shape = scale.shape;
    const int64_t rows = weight.shape.rank() > 0 ? weight.shape[0] : 1, count = shape.numel();
    const bool along_rows = shape.rank() > 0 && shape[0] == rows && shape.rank() <= 3 &&
                            (shape.rank() < 3 || shape[2] == 1) && count > 0 && weight.shape.numel() % count == 0;
    check(count == 1 || along_rows,
          "{}: \"{}\" has shape {} beside a weight {}; Wick reads one scale, one a row, or equal runs of each row",
          source_.name, *name, shape, weight.shape);
    std::vector<float> values = scale.load(host_memory()).to_vector();
    check(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }),
          "{}: \"{}\" holds scales that are not finite numbers: the file is damaged; copy it again", source_.name,
          *name);
    return std::make_shared<const Scales>(
        Scales{std::move(values), std::max<int64_t>(weight.shape.numel() / count, 1)});
  }

  static constexpr std::string_view kScales[] = {".weight_scale", ".scale_weight"};

  const TensorSource source_;
  const Formats formats_;
  std::map<std::string, std::string> scaled_;  // kinds of layers that have scales, with the name of one
};

}  // namespace

TensorSource with_fp8(const TensorSource& source, const std::map<std::string, std::string>& metadata) {
  TensorSource all = source;
  all.find = [layers = std::make_shared<const Layers>(source, formats_in(metadata, source.name))](
                 const std::string& name, const Shape& wanted) { return layers->find(name, wanted); };
  return all;
}

bool goes_with_fp8(std::string_view name) {
  static constexpr std::string_view kCompanions[] = {".weight_scale", ".scale_weight", ".input_scale",
                                                     ".scale_input",  ".comfy_quant",  "scaled_fp8"};
  return std::ranges::any_of(kCompanions, [&](std::string_view last) { return name.ends_with(last); });
}

}  // namespace wick
