#include "wick/io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/descriptor.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so are we");

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr std::string_view kMetadata = "__metadata__";

struct FileDType {
  std::string_view name;
  unsigned bits;
  std::optional<DType> dtype;
};

// All that the format knows, in the order of the reference implementation (safetensors/src/tensor.rs, `enum Dtype`),
// which writes the last first.
constexpr FileDType kFileDTypes[] = {
    {"BOOL", 8, {}},         {"F4", 4, {}},           {"F6_E2M3", 6, {}},        {"F6_E3M2", 6, {}},
    {"U8", 8, DType::u8},    {"I8", 8, {}},           {"F8_E5M2", 8, {}},        {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},      {"F8_E4M3FNUZ", 8, {}},  {"F8_E5M2FNUZ", 8, {}},    {"I16", 16, {}},
    {"U16", 16, {}},         {"F16", 16, DType::f16}, {"BF16", 16, DType::bf16}, {"I32", 32, DType::i32},
    {"U32", 32, {}},         {"F32", 32, DType::f32}, {"C64", 64, {}},           {"F64", 64, {}},
    {"I64", 64, DType::i64}, {"U64", 64, {}},
};

const FileDType* find_dtype(std::string_view name) {
  const auto* found = std::ranges::find(kFileDTypes, name, &FileDType::name);
  return found == std::end(kFileDTypes) ? nullptr : found;
}

const FileDType& file_dtype(DType dtype) {
  return *std::ranges::find(kFileDTypes, std::optional<DType>(dtype), &FileDType::dtype);
}

// Reads the header as a stream of events rather than as a tree, so that a hostile one costs no memory and every
// breach is found where it stands.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& source) : header_(header), source_(source) {}

  bool start_object(size_t) override {
    if (skipping()) return ++skip_depth_, true;
    if (place_ == Place::file) return place_ = Place::root, true;
    if (place_ != Place::root) fail_value("an object");
    if (name_ != kMetadata) {
      entry_ = {};
      return place_ = Place::tensor, true;
    }
    return place_ = Place::metadata, true;
  }

  bool end_object() override {
    if (skip_depth_ > 0) return --skip_depth_, true;
    if (place_ == Place::tensor) finish_tensor();
    place_ = place_ == Place::root ? Place::end : Place::root;
    return true;
  }

  bool start_array(size_t) override {
    if (skipping()) return ++skip_depth_, true;
    if (place_ != Place::tensor || field_ == "dtype") fail_value("a list");
    place_ = field_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    if (skip_depth_ > 0) return --skip_depth_, true;
    place_ = Place::tensor;
    return true;
  }

  bool key(std::string& text) override {
    if (skip_depth_ > 0) return true;
    if (place_ == Place::root) {
      name_ = text;
      const bool fresh = name_ == kMetadata ? !std::exchange(seen_metadata_, true) : !header_.tensors.contains(name_);
      check(fresh, "{}: {} stands twice in the header", source_, subject());
      return true;
    }
    field_ = text;
    const bool fresh = place_ == Place::metadata ? !header_.metadata.contains(field_) : mark_field();
    check(fresh, "{}: {}: the key {} stands twice", source_, subject(), quote(field_));
    return true;
  }

  bool string(std::string& text) override {
    if (skipping()) return true;
    if (place_ == Place::metadata)
      header_.metadata[field_] = text;
    else if (place_ == Place::tensor && field_ == "dtype")
      entry_.dtype = text;
    else
      fail_value("a string");
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (skipping()) return true;
    if (place_ == Place::shape) {
      check(entry_.shape.size() < kMaxRank, "{}: {} has more than {} dimensions", source_, subject(), kMaxRank);
      entry_.shape.push_back(value);
    } else if (place_ == Place::offsets) {
      check(entry_.offsets.size() < 2, "{}: {}: data_offsets has more than two entries", source_, subject());
      entry_.offsets.push_back(value);
    } else {
      fail_value("a number");
    }
    return true;
  }

  bool null() override {
    const bool no_metadata = place_ == Place::root && name_ == kMetadata;
    return no_metadata || scalar("null");
  }
  bool boolean(bool) override { return scalar("true or false"); }
  bool number_integer(int64_t) override { return scalar("a negative number"); }
  bool number_float(double, const std::string&) override { return scalar("a fraction or a number beyond 64 bits"); }
  bool binary(binary_t&) override { return scalar("binary data"); }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& problem) override {
    fail("{}: the header is not valid JSON: {}", source_, describe(problem));
  }

 private:
  enum class Place { file, root, metadata, tensor, shape, offsets, end };
  struct Entry {
    std::string dtype;
    std::vector<uint64_t> shape, offsets;
    bool has_dtype = false, has_shape = false, has_offsets = false;
  };

  // Fields of a tensor that the format does not know are passed over, as the reference implementation does.
  bool skipping() const {
    return skip_depth_ > 0 ||
           (place_ == Place::tensor && field_ != "dtype" && field_ != "shape" && field_ != "data_offsets");
  }

  bool mark_field() {
    if (field_ == "dtype") return !std::exchange(entry_.has_dtype, true);
    if (field_ == "shape") return !std::exchange(entry_.has_shape, true);
    if (field_ == "data_offsets") return !std::exchange(entry_.has_offsets, true);
    return true;
  }

  bool scalar(std::string_view found) const {
    if (!skipping()) fail_value(found);
    return true;
  }

  std::string subject() const { return name_ == kMetadata ? name_ : "tensor " + quote(name_); }

  [[noreturn]] void fail_value(std::string_view found) const {
    switch (place_) {
      case Place::file:
      case Place::end:
        fail("{}: the header: expected an object, found {}", source_, found);
      case Place::root:
        fail("{}: {}: expected an object, found {}", source_, subject(), found);
      case Place::metadata:
        fail("{}: {}: {}: expected a string, found {}", source_, kMetadata, quote(field_), found);
      case Place::tensor:
        fail("{}: {}: {}: expected {}, found {}", source_, subject(), field_,
             field_ == "dtype" ? "a string" : "a list of integers", found);
      case Place::shape:
      case Place::offsets:
        fail("{}: {}: {}: expected non-negative integers, found {}", source_, subject(), field_, found);
    }
    std::abort();
  }

  void finish_tensor();

  SafetensorsHeader& header_;
  const std::string& source_;
  Place place_ = Place::file;
  std::string name_, field_;
  Entry entry_;
  bool seen_metadata_ = false;
  int skip_depth_ = 0;
};

void HeaderReader::finish_tensor() {
  const std::string name = subject();
  check(entry_.has_dtype && entry_.has_shape && entry_.has_offsets, "{}: {} has no {}", source_, name,
        !entry_.has_dtype   ? "dtype"
        : !entry_.has_shape ? "shape"
                            : "data_offsets");
  check(entry_.offsets.size() == 2, "{}: {}: data_offsets has {} entries, not two", source_, name,
        entry_.offsets.size());
  const FileDType* dtype = find_dtype(entry_.dtype);
  check(dtype, "{}: {} has the unknown dtype {}", source_, name, quote(entry_.dtype));

  TensorInfo info{entry_.dtype, dtype->dtype, {}, entry_.offsets[0], entry_.offsets[1]};
  check(info.begin <= info.end, "{}: {}: data_offsets end at {}, before they begin at {}", source_, name, info.end,
        info.begin);
  // Empty extents count as one in `span`, so that strides of an empty tensor cannot overflow either.
  uint64_t elements = 1, span = dtype->bits;
  for (uint64_t extent : entry_.shape) {
    const bool fits =
        extent <= INT64_MAX && !__builtin_mul_overflow(span, std::max<uint64_t>(extent, 1), &span) && span <= INT64_MAX;
    check(fits, "{}: {}: the shape [{}] is larger than any memory", source_, name, fmt::join(entry_.shape, ", "));
    elements *= extent;
    info.shape.push_back(int64_t(extent));
  }
  const uint64_t bits = elements * dtype->bits;
  check(bits % 8 == 0 && bits / 8 == info.end - info.begin,
        "{}: {}: shape {} of {} takes {} bytes, but data_offsets [{}, {}] give it {}", source_, name, info.shape,
        dtype->name, (bits + 7) / 8, info.begin, info.end, info.end - info.begin);
  header_.tensors.emplace(name_, std::move(info));
}

// The tensors must cover the data exactly: no hole in which something could hide, no byte with two meanings.
void check_coverage(const SafetensorsHeader& header, uint64_t data_bytes, const std::string& source) {
  std::vector<const std::pair<const std::string, TensorInfo>*> order;
  for (const auto& entry : header.tensors) order.push_back(&entry);
  std::ranges::sort(order, {}, [](const auto* entry) { return std::pair(entry->second.begin, entry->second.end); });
  const uint64_t declared = order.empty() ? 0 : order.back()->second.end;
  check(declared <= data_bytes,
        "{}: the file is truncated: the header declares {} bytes of tensors, found {}; fetch or write it again", source,
        declared, data_bytes);
  uint64_t end = 0;
  for (const auto* entry : order) {
    const auto& [name, info] = *entry;
    check(info.begin == end, "{}: tensor {} begins at byte {} of the data, expected {}: {}", source, quote(name),
          info.begin, end, info.begin < end ? "it overlaps another tensor" : "there is a hole before it");
    end = info.end;
  }
  check(end == data_bytes, "{}: {} bytes follow the last tensor; the file is damaged or not safetensors", source,
        data_bytes - end);
}

// What people hand over instead of safetensors, told by its first bytes.
std::string_view guess_format(std::string_view start) {
  if (start.starts_with("PK\x03\x04") || start.starts_with("\x80\x02"))
    return "a PyTorch pickle (.ckpt, .pt, .bin), which can run code when opened; convert it to safetensors";
  if (start.starts_with("GGUF")) return "a GGUF file; use its safetensors version";
  if (start.starts_with("version ")) return "a Git LFS pointer; fetch the file itself (git lfs pull)";
  if (start.starts_with("<")) return "a web page; download the file itself";
  return "something else";
}

[[noreturn]] void fail_foreign(const FileDescriptor& file, std::string_view detail) {
  std::array<char, 8> start{};
  const size_t n = file.read_at(0, start.data(), start.size());
  fail("{}: expected a safetensors file, found {} ({})", file.path().string(), guess_format({start.data(), n}), detail);
}

// Shows a tensor's elements to `sink(const void*, size_t)` in row-major order.
template <class Sink>
void for_each_block(const Tensor& tensor, Sink&& sink) {
  const size_t size = size_of(tensor.dtype());
  const auto* data = tensor.data<std::byte>();
  if (tensor.numel() == 0) return;
  if (tensor.contiguous()) return sink(data, size_t(tensor.numel()) * size);

  const int last = tensor.rank() - 1;
  const size_t row_length = size_t(tensor.dim(last));
  std::vector<std::byte> row(row_length * size);
  std::array<int64_t, kMaxRank> index{};
  while (true) {
    int64_t offset = 0;
    for (int d = 0; d < last; ++d) offset += index[size_t(d)] * tensor.stride()[d];
    for (size_t i = 0; i < row_length; ++i)
      std::memcpy(&row[i * size], data + (offset + int64_t(i) * tensor.stride()[last]) * int64_t(size), size);
    sink(row.data(), row.size());
    int d = last - 1;
    for (; d >= 0 && ++index[size_t(d)] == tensor.dim(d); --d) index[size_t(d)] = 0;
    if (d < 0) return;
  }
}

using NamedTensor = std::pair<const std::string, Tensor>;

std::vector<const NamedTensor*> in_file_order(const std::map<std::string, Tensor>& tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& entry : tensors) order.push_back(&entry);
  std::ranges::stable_sort(order, std::greater<>{},
                           [](const NamedTensor* e) { return &file_dtype(e->second.dtype()); });
  return order;
}

std::string json_string(const std::string& text, const std::filesystem::path& path) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail("{}: cannot write the file: {} is not UTF-8", path.string(), quote(text));
  }
}

std::string header_json(const std::filesystem::path& path, std::span<const NamedTensor* const> order,
                        const std::map<std::string, std::string>& metadata) {
  std::string text, comma;
  for (const auto& [key, value] : metadata)
    text += std::exchange(comma, ",") + json_string(key, path) + ":" + json_string(value, path);
  if (!metadata.empty()) text = fmt::format("\"{}\":{{{}}}", kMetadata, text);

  uint64_t begin = 0;
  for (const NamedTensor* entry : order) {
    const Tensor& tensor = entry->second;
    const uint64_t end = begin + uint64_t(tensor.numel()) * size_of(tensor.dtype());
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", std::exchange(comma, ","),
                        json_string(entry->first, path), file_dtype(tensor.dtype()).name,
                        fmt::join(tensor.shape(), ","), begin, end);
    begin = end;
  }
  text = "{" + text + "}";
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the tensors are aligned for those who map the file
  check(text.size() <= kMaxHeader, "{}: cannot write the file: its header would take {} bytes, and {} is the limit",
        path.string(), text.size(), kMaxHeader);
  return text;
}

}  // namespace

struct SafetensorsFile::Descriptor : FileDescriptor {
  using FileDescriptor::FileDescriptor;
};

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes, const std::string& source) {
  check(json.starts_with('{'), "{}: the header does not start with '{{'", source);
  // The JSON library takes a NUL for the end of its input and would not look at what follows.
  check(json.find('\0') == json.npos, "{}: the header is not valid JSON: it contains a NUL byte", source);
  SafetensorsHeader header;
  HeaderReader reader(header, source);
  nlohmann::json::sax_parse(json, &reader);
  check_coverage(header, data_bytes, source);
  return header;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.file_ = std::make_shared<Descriptor>(path);
  const Descriptor& in = *file.file_;
  uint64_t length = 0;
  if (in.read_at(0, &length, sizeof length) < sizeof length)
    fail_foreign(in, fmt::format("it has {} bytes", in.size()));
  if (length > kMaxHeader)
    fail_foreign(in, fmt::format("its header would take {} bytes, over the limit of {}", length, kMaxHeader));
  file.data_offset_ = sizeof length + length;
  check(file.data_offset_ <= in.size(),
        "{}: the file is truncated: the header alone takes {} bytes, the file has {}; fetch or write it again",
        path.string(), file.data_offset_, in.size());
  std::string json(length, '\0');
  check(in.read_at(sizeof length, json.data(), length) == length, "{}: the file shrank while it was read",
        path.string());
  file.header_ = parse_safetensors_header(json, in.size() - file.data_offset_, path.string());
  return file;
}

Tensor SafetensorsFile::load(const std::string& name, Memory& memory) const {
  const auto found = header_.tensors.find(name);
  check(found != header_.tensors.end(), "{}: there is no tensor {} among its {}", path_.string(), quote(name),
        header_.tensors.size());
  const TensorInfo& info = found->second;
  check(info.dtype.has_value(), "{}: tensor {} is {}, which Wick does not compute with; convert it to F32, BF16 or F16",
        path_.string(), quote(name), info.dtype_name);
  check(memory.on_host(), "{}: tensor {}: files are read to host memory", path_.string(), quote(name));
  Tensor tensor = Tensor::empty(info.shape, *info.dtype, memory);
  const size_t bytes = size_t(info.end - info.begin);
  check(file_->read_at(data_offset_ + info.begin, tensor.data<void>(), bytes) == bytes,
        "{}: tensor {}: the file shrank while it was in use", path_.string(), quote(name));
  return tensor;
}

void save_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  for (const auto& [name, tensor] : tensors) {
    check(name != kMetadata, "{}: cannot write the file: no tensor may be called {}", path.string(), kMetadata);
    check(bool(tensor) && tensor.memory().on_host(), "{}: cannot write the file: tensor {} is not on the host",
          path.string(), quote(name));
  }
  const auto order = in_file_order(tensors);
  const std::string header = header_json(path, order, metadata);
  const uint64_t length = header.size();
  AtomicFile file(path);
  file.write(&length, sizeof length);
  file.write(header);
  for (const NamedTensor* entry : order)
    for_each_block(entry->second, [&](const void* data, size_t bytes) { file.write(data, bytes); });
  file.commit();
}

std::string sha256_of_tensors(const std::map<std::string, Tensor>& tensors) {
  Sha256 hash;
  for (const NamedTensor* entry : in_file_order(tensors))
    for_each_block(entry->second, [&](const void* data, size_t bytes) { hash.update(data, bytes); });
  return hash.hex();
}

}  // namespace wick
