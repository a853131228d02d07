#include "wick/pipelines/stored_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "wick/backend/cpu/parallel.h"
#include "wick/core/row_formats.h"
#include "wick/io/quote.h"
#include "wick/nn/bitsandbytes.h"
#include "wick/nn/source.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/finite.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Chars = std::vector<char>;

Chars raw_bytes(const Tensor& x) {
  const char* const data = x.data<char>();
  return {data, data + bytes_of(x.dtype(), x.shape())};
}

// A float of 8 bits with 5 of exponent: the upper half of an f16. The number is rounded to the nearest, once.
uint8_t f32_to_e5m2(float value) {
  const int exponent = value == 0 ? -14 : std::max(std::ilogb(value), -14);
  const float rounded = std::ldexp(std::nearbyint(std::ldexp(value, 2 - exponent)), exponent - 2);
  return uint8_t(f32_to_f16(rounded) >> 8);
}

struct NarrowType {
  std::string_view name;
  float largest;
  uint8_t (*code)(float value);
};
constexpr NarrowType kNarrow[] = {{"F8_E4M3", 448, f32_to_e4m3}, {"F8_E5M2", 57344, f32_to_e5m2}};

const NarrowType* narrow_type(std::string_view name) {
  const auto* found = std::ranges::find(kNarrow, name, &NarrowType::name);
  return found == std::end(kNarrow) ? nullptr : found;
}

std::optional<DType> wide_type(std::string_view name) {
  if (name == "F32") return DType::f32;
  if (name == "F16") return DType::f16;
  if (name == "BF16") return DType::bf16;
  return {};
}

[[noreturn]] void fail_too_large(const SafetensorsEntry& values) {
  fail("{} would hold values too large for {}; choose f32 or bf16 as --dtype", quote(values.name), values.dtype);
}

// Of each run of so many elements.
std::vector<float> largest_of_runs(const Tensor& x, int64_t run) {
  std::vector<float> largest(size_t(x.numel() / run));
  const float* const all = x.data<float>();
  constexpr int64_t kPiece = 1 << 16;
  const int64_t pieces = (run + kPiece - 1) / kPiece;  // of a run, which may be the whole matrix
  std::vector<float> parts(largest.size() * size_t(pieces));
  parallel_each(int64_t(parts.size()), x.numel(), [&](int64_t i) {
    const int64_t begin = i % pieces * kPiece, count = std::min(run - begin, kPiece);
    const float* const from = all + i / pieces * run + begin;
    for (int64_t j = 0; j < count; ++j) parts[size_t(i)] = std::max(parts[size_t(i)], std::abs(from[j]));
  });
  for (size_t i = 0; i < parts.size(); ++i)
    largest[i / size_t(pieces)] = std::max(largest[i / size_t(pieces)], parts[i]);
  return largest;
}

Chars codes_of(const Tensor& x, const NarrowType& type) {
  Chars codes(size_t(x.numel()));
  parallel_for(x.numel(), x.numel(), [&](int64_t begin, int64_t end) {
    const float* const from = x.data<float>();
    for (int64_t i = begin; i < end; ++i)
      codes[size_t(i)] = char(type.code(std::clamp(from[i], -type.largest, type.largest)));
  });
  return codes;
}

// x times a number for each run.
Tensor times(const Tensor& x, const std::vector<float>& numbers) {
  const int64_t runs = int64_t(numbers.size());
  return reshape(reshape(x, {runs, -1}) * Tensor::of(numbers, {runs, 1}), x.shape());
}

std::vector<float> inverses(std::vector<float> numbers) {
  for (float& number : numbers) number = number == 0 ? 0 : 1 / number;
  return numbers;
}

}  // namespace

StoredTensors stored_tensors(const fs::path& given) {
  const fs::path path = fs::is_directory(given) ? weights_in(given).value_or(given / "model.safetensors") : given;
  StoredTensors tensors;
  if (path.extension() != ".json") {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [name, info] : file.tensors()) tensors.emplace(name, file);
    return tensors;
  }
  std::map<std::string, SafetensorsFile> shards;
  for (const auto& [name, shard] : read_safetensors_index(path)) {
    auto found = shards.find(shard);
    if (found == shards.end()) found = shards.emplace(shard, SafetensorsFile::open(path.parent_path() / shard)).first;
    check(found->second.has(name), "{}: has no tensor {}, which {} says is there", found->second.path().string(),
          quote(name), path.filename().string());
    tensors.emplace(name, found->second);
  }
  return tensors;
}

SafetensorsGroup copied(const std::string& name, const SafetensorsFile& file) {
  const TensorInfo& info = file.tensors().at(name);
  return {{{name, info.dtype_name, info.shape}},
          [read = file.bytes(name), size = size_t(*info.bytes)](const SafetensorsGroup::Sink& sink) {
            Chars piece;
            for (size_t at = 0; at < size; at += piece.size()) {
              piece.resize(std::min(size - at, size_t{1} << 20));
              read(piece.data(), at, piece.size());
              sink(0, at, piece.data(), piece.size());
            }
          }};
}

StoredFormat StoredFormat::of(const std::string& name, const SafetensorsFile& file) {
  const TensorInfo& info = file.tensors().at(name);
  check(narrow_type(info.dtype_name) || wide_type(info.dtype_name),
        "{}: {} is {}{}; Wick puts adapters into floats of 32, 16 and 8 bits: choose a file of those",
        file.path().string(), quote(name), info.dtype_name,
        std::ranges::any_of(file.tensors(), [](const auto& t) { return goes_with_bitsandbytes(t.first); })
            ? ", of bitsandbytes"
            : "");
  StoredFormat format{{name, info.dtype_name, info.shape}};
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return format;
  const std::string layer = name.substr(0, name.size() - kWeight.size());
  for (const char* beside : {".weight_scale", ".scale_weight"}) {
    const auto found = file.tensors().find(layer + beside);
    if (found == file.tensors().end()) continue;
    format.scales = {found->first, found->second.dtype_name, found->second.shape};
    format.numbers = file.load_numbers(found->first).to_vector();
    break;
  }
  return format;
}

StoredFormat::Bytes StoredFormat::encoded(const Tensor& x) const {
  const NarrowType* const narrow = narrow_type(values.dtype);
  if (!narrow) {
    const Tensor scaled = numbers.empty() ? x : times(x, inverses(numbers));
    const Tensor rounded = contiguous(cast(scaled, wide_type(values.dtype).value()));
    if (!is_finite(rounded)) fail_too_large(values);
    Bytes bytes{raw_bytes(rounded), {}};
    if (scales) bytes.scales = raw_bytes(cast(Tensor::of(numbers, scales->shape), wide_type(scales->dtype).value()));
    return bytes;
  }
  if (numbers.empty()) {
    const std::vector<float> largest = largest_of_runs(x, std::max<int64_t>(x.numel(), 1));
    if (!is_finite(x) || std::ranges::any_of(largest, [&](float m) { return m > narrow->largest; }))
      fail_too_large(values);
    return {codes_of(x, *narrow), {}};
  }
  if (!is_finite(x)) fail_too_large(values);
  std::vector<float> fresh = largest_of_runs(x, x.numel() / int64_t(numbers.size()));
  for (float& number : fresh) number = number == 0 ? 1 : number / narrow->largest;
  const Tensor stored = cast(Tensor::of(fresh, scales->shape), wide_type(scales->dtype).value());
  const std::vector<float> rounded = cast(stored, DType::f32).to_vector();
  return {codes_of(times(x, inverses(rounded)), *narrow), raw_bytes(stored)};
}

}  // namespace wick
