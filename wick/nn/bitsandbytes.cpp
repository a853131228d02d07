#include "wick/nn/bitsandbytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "wick/core/dynamic_map.h"
#include "wick/core/error.h"
#include "wick/core/row_formats.h"
#include "wick/io/count.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/io/tensor_file.h"
#include "wick/nn/stored_codes.h"

namespace wick {
namespace {

constexpr std::string_view kWeight = ".weight";

// A type of four bits: what each code stands for, of the largest magnitude of its block.
struct FourBits {
  const char* name;        // as the JSON has it
  const char* dtype_name;  // in errors
  std::string_view state;  // the end of the JSON's name
  std::span<const float, 16> values;
};
// Three bits of a small float, as parts of the largest, 12, and a sign above them.
constexpr float kFp4Values[16] = {0,  0.0625f / 12,  8 / 12.0f,  1,  4 / 12.0f,  6 / 12.0f,  2 / 12.0f,  3 / 12.0f,
                                  -0, -0.0625f / 12, -8 / 12.0f, -1, -4 / 12.0f, -6 / 12.0f, -2 / 12.0f, -3 / 12.0f};
constexpr FourBits kNf4{"nf4", "NF4", ".quant_state.bitsandbytes__nf4", kNf4Map.values},
    kFp4{"fp4", "FP4", ".quant_state.bitsandbytes__fp4", kFp4Values};

int64_t divided_up(int64_t value, int64_t unit) { return value / unit + (value % unit != 0); }

// The JSON of a weight in four bits.
struct State {
  Shape shape;
  int64_t run;  // elements of a block
  struct Nested {
    int64_t run;
    float mean;
  };
  std::optional<Nested> nested;
};

int64_t positive(const nlohmann::json& object, const char* key, const std::string& where) {
  const auto value = as<int64_t>(member(object, key, where), fmt::format("{}: {}", where, key));
  check(value > 0 && value < (int64_t{1} << 31), "{}: {} should be a positive number, found {}", where, key, value);
  return value;
}

Shape shape_in(const nlohmann::json& state, const std::string& where) {
  std::vector<uint64_t> extents;
  for (const nlohmann::json& extent : as_list(member(state, "shape", where), where + ": shape"))
    extents.push_back(as<uint64_t>(extent, where + ": shape"));
  const std::optional<Shape> shape = extents.size() <= kMaxRank ? checked_shape(extents, 8) : std::nullopt;
  check(shape.has_value(), "{}: shape is larger than any tensor", where);
  return *shape;
}

// Scales of type F32.
ReadScales reading(const StoredTensor& scales, const std::string& where) {
  return [bytes = scales.bytes, where](int64_t first, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    bytes(values.data(), size_t(first) * 4, values.size() * 4);
    check(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }),
          "{} holds scales that are not finite numbers: the file is damaged; copy it again", where);
    return values;
  };
}

// The magnitudes that codes of 8 bits stand for.
ReadScales denested(const StoredCodes::Nested& nested, int64_t run, std::shared_ptr<const std::vector<float>> map) {
  return [=](int64_t first, int64_t count) {
    std::vector<uint8_t> codes(static_cast<size_t>(count));
    nested.codes(codes.data(), size_t(first), codes.size());
    const int64_t begin = first / run;
    const std::vector<float> scales = nested.scales(begin, (first + count - 1) / run - begin + 1);
    std::vector<float> values(codes.size());
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = (*map)[codes[i]] * scales[size_t((first + int64_t(i)) / run - begin)] + nested.mean;
    return values;
  };
}

// Calls f(begin, end, scale) for each part of elements first .. first + count whose scale is one, counted from `first`.
template <class F>
void each_run(const StoredCodes& codes, int64_t first, int64_t count, const F& f) {
  const int64_t begin = first / codes.run;
  const std::vector<float> scales = codes.scales(begin, (first + count - 1) / codes.run - begin + 1);
  for (int64_t i = 0; i < count;) {
    const int64_t run = (first + i) / codes.run, end = std::min(count, (run + 1) * codes.run - first);
    f(i, end, scales[size_t(run - begin)]);
    i = end;
  }
}

Decode decoder_of_int8(const StoredCodes& codes) {
  return [codes](const std::byte* from, float* to, int64_t first, int64_t count) {
    each_run(codes, first, count, [&](int64_t begin, int64_t end, float scale) {
      for (int64_t i = begin; i < end; ++i) to[i] = float(int8_t(from[i])) * scale * (1 / 127.0f);
    });
  };
}

Decode decoder_of(const FourBits& type, const StoredCodes& codes) {
  return [codes, values = type.values](const std::byte* from, float* to, int64_t first, int64_t count) {
    each_run(codes, first, count, [&](int64_t begin, int64_t end, float scale) {
      for (int64_t i = begin; i < end; ++i) to[i] = values[uint8_t(from[i / 2]) >> (i % 2 == 0 ? 4 : 0) & 15] * scale;
    });
  };
}

StoredTensor as_tensor(const StoredCodes& codes, const char* dtype_name, BlockSize unit, const Decode& decoder) {
  return decoded({.shape = codes.shape, .dtype_name = dtype_name, .bytes = codes.bytes}, unit, decoder);
}

// No format of rows has FP4's codes.
StoredTensor in_its_rows(StoredTensor tensor, const StoredCodes& codes) {
  tensor.rows = [codes](DType dtype) { return as_rows(codes, dtype); };
  return tensor;
}

class Layers {
 public:
  explicit Layers(const TensorSource& source) : source_(source) {}

  std::optional<StoredTensor> find(const std::string& name, const Shape& wanted) const {
    const std::optional<StoredTensor> found = source_.find(name, wanted);
    if (!found || !name.ends_with(kWeight)) return found;
    for (const FourBits* type : {&kNf4, &kFp4})
      if (source_.has(name + std::string(type->state))) return four_bits(*type, name, *found);
    const std::string layer = name.substr(0, name.size() - kWeight.size());
    if (source_.has(layer + ".SCB")) return int8(layer, *found);
    check(
        !source_.has(name + ".absmax"),
        "{}: {} is in bitsandbytes' four bits without their quant_state; Wick reads its nf4, fp4 and int8: use a file "
        "of those, or of floats of 32, 16 and 8 bits",
        source_.name, quote(name));
    check(found->dtype_name != "I8",
          "{}: {} is I8 and has no scales {} beside it; Wick reads bitsandbytes' int8: use a "
          "file of that, or of floats of 32, 16 and 8 bits",
          source_.name, quote(name), quote(layer + ".SCB"));
    return found;
  }

 private:
  std::string where(const std::string& tensor) const { return fmt::format("{}: {}", source_.name, quote(tensor)); }

  StoredTensor companion(const std::string& tensor, const std::string& of, DType dtype, const char* dtype_name,
                         int64_t count) const {
    const std::optional<StoredTensor> found = source_.find(tensor, {});
    check(found.has_value(), "{}: has no tensor {}, to which {} belongs", source_.name, quote(tensor), quote(of));
    check(found->dtype == dtype && found->shape.numel() == count, "{} should have {} in {}, found {} {}", where(tensor),
          count_of(count, "value"), dtype_name, found->dtype_name, found->shape);
    return *found;
  }
  StoredTensor floats(const std::string& tensor, const std::string& of, int64_t count) const {
    return companion(tensor, of, DType::f32, "F32", count);
  }

  State state_of(const FourBits& four, const std::string& name) const {
    const std::string tensor = name + std::string(four.state), here = where(tensor);
    const StoredTensor stored = *source_.find(tensor, {});
    check(stored.dtype == DType::u8, "{} should be U8, found {}", here, stored.dtype_name);
    const Tensor text = stored.load(host_memory());
    const nlohmann::json json = parse_json({text.data<char>(), size_t(text.numel())}, here);
    const auto type = as<std::string>(member(json, "quant_type", here), here + ": quant_type");
    check(type == four.name, "{}: quant_type should be {}, found {}", here, quote(four.name), quote(type));
    State state{shape_in(json, here), positive(json, "blocksize", here), {}};
    check(state.run % 2 == 0, "{}: blocksize should be even, found {}", here, state.run);
    if (source_.has(name + ".nested_absmax") || find_member(json, "nested_offset")) {
      const auto offset = as<double>(member(json, "nested_offset", here), here + ": nested_offset");
      check(std::abs(offset) <= double(std::numeric_limits<float>::max()), "{}: nested_offset {} is too large for F32",
            here, offset);
      state.nested = {positive(json, "nested_blocksize", here), float(offset)};
    }
    return state;
  }

  StoredTensor four_bits(const FourBits& type, const std::string& name, const StoredTensor& stored) const {
    const State state = state_of(type, name);
    const int64_t numel = state.shape.numel(), count = divided_up(numel, state.run);
    const bool raw = stored.dtype && stored.bytes && (stored.dtype == DType::u8 || is_float(*stored.dtype));
    const int64_t bytes = raw ? int64_t(size_of(*stored.dtype)) * stored.shape.numel() : 0;
    check(raw && bytes == divided_up(numel, 2), "{} should have {} for {} in {}, found {} {}", where(name),
          count_of(divided_up(numel, 2), "byte"), state.shape, type.name, stored.dtype_name, stored.shape);
    check_map(type, name);
    StoredCodes codes{DType::nf4, state.shape, stored.bytes, state.run, {}};
    const std::string scales = name + ".absmax";
    if (state.nested)
      add_nested(codes, name, *state.nested, count);
    else
      codes.scales = reading(floats(scales, name, count), where(scales));
    const StoredTensor tensor = as_tensor(codes, type.dtype_name, {2, 1}, decoder_of(type, codes));
    return &type == &kNf4 ? in_its_rows(tensor, codes) : tensor;
  }

  // The values of the 16 codes are in the file too, but bitsandbytes' kernels have the type's own built in, as Wick
  // has: a file with others was made for a program that reads them, or is damaged. Some programs round the map to 16
  // bits.
  void check_map(const FourBits& type, const std::string& name) const {
    const std::string map = name + ".quant_map";
    if (!source_.has(map)) return;
    const StoredTensor stored = *source_.find(map, {});
    check(stored.dtype && is_float(*stored.dtype) && stored.shape.numel() == 16,
          "{} should have 16 values in F32, found {} {}", where(map), stored.dtype_name, stored.shape);
    const std::vector<float> found = stored.load(host_memory()).to_vector();
    const float rounding = *stored.dtype == DType::f32 ? 1e-6f : *stored.dtype == DType::f16 ? 0x1p-11f : 0x1p-8f;
    for (size_t code = 0; code < found.size(); ++code) {
      const float value = type.values[code];
      check(std::abs(found[code] - value) <= rounding * std::abs(value),
            "{} has {} for code {}, where {} has {}: the file is damaged, or in a type that Wick does not read; copy "
            "it again, or make it anew with bitsandbytes",
            where(map), found[code], code, type.name, value);
    }
  }

  // Maps are computed where a file is made, and differ in last bits with PyTorch's instructions.
  static bool is_dynamic(const std::vector<float>& map) {
    return std::ranges::equal(map, kSignedMap.values,
                              [](float a, float b) { return std::abs(a - b) <= 1e-6f * std::abs(b); });
  }

  // The magnitudes of blocks in codes of 8 bits. With another map or other runs they are no nf4_double.
  void add_nested(StoredCodes& codes, const std::string& name, const State::Nested& state, int64_t count) const {
    const StoredTensor stored = companion(name + ".absmax", name, DType::u8, "U8", count);
    const std::string outer = name + ".nested_absmax", map_name = name + ".nested_quant_map";
    const ReadScales scales = reading(floats(outer, name, divided_up(count, state.run)), where(outer));
    const auto map =
        std::make_shared<const std::vector<float>>(reading(floats(map_name, name, 256), where(map_name))(0, 256));
    const StoredCodes::Nested nested{stored.bytes, state.mean, scales};
    codes.scales = denested(nested, state.run, map);
    if (state.run != kNestedRun || !is_dynamic(*map)) return;
    codes.dtype = DType::nf4_double;
    codes.nested = nested;
  }

  StoredTensor int8(const std::string& layer, const StoredTensor& stored) const {
    const std::string name = layer + std::string(kWeight), scales = layer + ".SCB", format = layer + ".weight_format";
    check(stored.dtype_name == "I8" && stored.bytes && stored.shape.rank() == 2,
          "{} should be a matrix in I8 beside {}, found {} {}", where(name), quote(scales), stored.dtype_name,
          stored.shape);
    if (source_.has(format)) {
      const Tensor order = companion(format, name, DType::u8, "U8", 1).load(host_memory());
      check(*order.data<uint8_t>() == 0,
            "{} should be 0, rows in their order, found {}; save the model with a newer "
            "bitsandbytes",
            where(format), *order.data<uint8_t>());
    }
    const StoredTensor magnitudes = floats(scales, name, stored.shape[0]);
    const StoredCodes codes{DType::int8, stored.shape, stored.bytes, std::max<int64_t>(stored.shape[1], 1),
                            reading(magnitudes, where(scales))};
    return in_its_rows(as_tensor(codes, "I8", {1, 1}, decoder_of_int8(codes)), codes);
  }

  const TensorSource source_;
};

}  // namespace

TensorSource with_bitsandbytes(const TensorSource& source) {
  TensorSource all = source;
  all.find = [layers = std::make_shared<const Layers>(source)](const std::string& name, const Shape& wanted) {
    return layers->find(name, wanted);
  };
  return all;
}

bool goes_with_bitsandbytes(std::string_view name) {
  static constexpr std::string_view kCompanions[] = {".weight.absmax",
                                                     ".weight.quant_map",
                                                     ".weight.nested_absmax",
                                                     ".weight.nested_quant_map",
                                                     kNf4.state,
                                                     kFp4.state,
                                                     ".SCB",
                                                     ".weight_format"};
  return std::ranges::any_of(kCompanions, [&](std::string_view last) { return name.ends_with(last); });
}

}  // namespace wick
