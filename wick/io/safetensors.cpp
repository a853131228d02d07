#include "wick/io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/numbers.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors_format.h"
#include "wick/io/safetensors_writer.h"

namespace wick {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so are we");

const FileDType& file_dtype(DType dtype) {
  return *std::ranges::find(kFileDTypes, std::optional<DType>(dtype), &FileDType::dtype);
}

// Formats that people hand over instead of safetensors, recognised by their first bytes.
std::string_view guess_format(std::string_view start) {
  if (start.starts_with("PK\x03\x04") || start.starts_with("\x80\x02"))
    return "a PyTorch pickle (.ckpt, .pt, .bin), which can run code when opened; convert it to safetensors";
  if (start.starts_with("GGUF")) return "a GGUF file";
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
  if (!tensor.memory().on_host()) return for_each_block(tensor.to(host_memory()), sink);
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

const FileDType& file_dtype(const SafetensorsEntry& entry) {
  return *std::ranges::find(kFileDTypes, std::string_view(entry.dtype), &FileDType::name);
}

// The size of a tensor in the file.
uint64_t bytes_of(const SafetensorsEntry& entry) { return uint64_t(entry.shape.numel()) * file_dtype(entry).bits / 8; }

uint64_t bytes_of(const SafetensorsGroup& group) {
  uint64_t sum = 0;
  for (const SafetensorsEntry& entry : group.entries) sum += bytes_of(entry);
  return sum;
}

std::vector<SafetensorsEntry> in_file_order(std::vector<SafetensorsEntry> entries) {
  std::ranges::sort(entries, {}, &SafetensorsEntry::name);
  std::ranges::stable_sort(entries, std::greater<>{}, [](const SafetensorsEntry& e) { return &file_dtype(e); });
  return entries;
}

std::vector<SafetensorsEntry> in_order(std::vector<SafetensorsEntry> entries, const std::vector<std::string>& order) {
  std::map<std::string_view, size_t> places;
  for (const std::string& name : order) places.emplace(name, places.size());
  assert(places.size() == entries.size());
  std::ranges::sort(entries, {}, [&](const SafetensorsEntry& e) { return places.at(e.name); });
  return entries;
}

std::vector<SafetensorsEntry> entries_of(const std::map<std::string, Tensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, std::string(file_dtype(tensor.dtype()).name), tensor.shape()});
  return in_file_order(std::move(entries));
}

std::string json_string(const std::string& text, const std::filesystem::path& path) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail("{}: cannot write the file: {} is not UTF-8", path.string(), quote(text));
  }
}

std::string header_json(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& entries,
                        const std::map<std::string, std::string>& metadata) {
  std::string text, comma;
  for (const auto& [key, value] : metadata)
    text += std::exchange(comma, ",") + json_string(key, path) + ":" + json_string(value, path);
  if (!metadata.empty()) text = fmt::format("\"{}\":{{{}}}", kMetadataKey, text);

  uint64_t begin = 0;
  for (const SafetensorsEntry& entry : entries) {
    const uint64_t end = begin + bytes_of(entry);
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", std::exchange(comma, ","),
                        json_string(entry.name, path), entry.dtype, fmt::join(entry.shape, ","), begin, end);
    begin = end;
  }
  text = "{" + text + "}";
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the tensors are aligned in a mapped file
  check(text.size() <= kMaxSafetensorsHeader,
        "{}: cannot write the file: its header would take {} bytes, and {} is the limit", path.string(), text.size(),
        kMaxSafetensorsHeader);
  return text;
}

// Shows the file's bytes before those of tensors to `sink(const void*, size_t)`; returns how many.
template <class Sink>
uint64_t show_header(const std::string& header, Sink&& sink) {
  const uint64_t length = header.size();
  sink(&length, sizeof length);
  sink(header.data(), header.size());
  return sizeof length + length;
}

// Shows the bytes of a file of these tensors.
template <class Sink>
void show_file(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
               const std::map<std::string, std::string>& metadata, Sink&& sink) {
  const std::vector<SafetensorsEntry> entries = entries_of(tensors);
  show_header(header_json(path, entries, metadata), sink);
  for (const SafetensorsEntry& entry : entries) for_each_block(tensors.at(entry.name), sink);
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file(path, "convert it to F32, BF16 or F16");
  const FileDescriptor& in = *file.file_;
  uint64_t length = 0;
  if (in.read_at(0, &length, sizeof length) < sizeof length)
    fail_foreign(in, fmt::format("it has {}", count_of(in.size(), "byte")));
  if (length > kMaxSafetensorsHeader)
    fail_foreign(in,
                 fmt::format("its header would take {} bytes, over the limit of {}", length, kMaxSafetensorsHeader));
  file.data_ = sizeof length + length;
  check(file.data_ <= in.size(),
        "{}: the file is truncated: the header alone takes {}, the file has {}; fetch or write it again", path.string(),
        count_of(file.data_, "byte"), in.size());
  std::string json(length, '\0');
  check(in.read_at(sizeof length, json.data(), length) == length, "{}: the file shrank while it was read",
        path.string());
  SafetensorsHeader header = parse_safetensors_header(json, in.size() - file.data_, path.string());
  file.tensors_ = std::move(header.tensors);
  file.metadata_ = std::move(header.metadata);
  return file;
}

Tensor SafetensorsFile::load_numbers(const std::string& name) const {
  const TensorInfo& info = info_of(name);
  const ToF32 convert = to_f32(info.dtype_name);
  check(convert, "{}: tensor {} is {}, of which Wick reads no numbers; convert it to F32, BF16 or F16", path_.string(),
        quote(name), info.dtype_name);
  Tensor tensor = Tensor::empty(info.shape, DType::f32, host_memory());
  std::vector<std::byte> stored(size_t(*info.bytes));
  bytes(name)(stored.data(), 0, stored.size());
  convert(stored.data(), tensor.data<float>(), size_t(tensor.numel()));
  return tensor;
}

std::map<std::string, std::string> read_safetensors_index(const std::filesystem::path& index) {
  constexpr size_t kMaxIndexBytes = size_t{64} << 20;
  const nlohmann::json json = read_json(index, kMaxIndexBytes);
  const auto& map = as_object(member(json, "weight_map", index.string()), index.string() + ": weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : map.items()) {
    const auto file = as<std::string>(value, fmt::format("{}: weight_map: {}", index.string(), quote(name)));
    const bool is_plain = std::filesystem::path(file).filename() == file && file != "." && file != "..";
    check(is_plain && !file.empty() && file.find('\0') == file.npos, "{}: the shard {} should be a plain file name",
          index.string(), quote(file));
    files.emplace(name, file);
  }
  check(!files.empty(), "{}: weight_map names no tensor", index.string());
  return files;
}

void save_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  for (const auto& [name, tensor] : tensors) {
    check(name != kMetadataKey, "{}: cannot write the file: no tensor may be called {}", path.string(), kMetadataKey);
    check(bool(tensor), "{}: cannot write the file: tensor {} holds nothing", path.string(), quote(name));
    check(!is_block(tensor.dtype()), "{}: cannot write the file: tensor {} is {}, which only GGUF files hold",
          path.string(), quote(name), name_of(tensor.dtype()));
  }
  AtomicFile file(path);
  show_file(path, tensors, metadata, [&](const void* data, size_t bytes) { file.write(data, bytes); });
  file.commit();
}

void save_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsGroup>& groups,
                      const std::map<std::string, std::string>& metadata, const std::vector<std::string>& order) {
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsGroup& group : groups) std::ranges::copy(group.entries, std::back_inserter(entries));
  entries = order.empty() ? in_file_order(std::move(entries)) : in_order(std::move(entries), order);
  const std::string header = header_json(path, entries, metadata);
  AtomicFile file(path);
  uint64_t end = show_header(header, [&](const void* data, size_t bytes) { file.write(data, bytes); });
  std::map<std::string_view, uint64_t> begins;
  for (const SafetensorsEntry& entry : entries) begins[entry.name] = std::exchange(end, end + bytes_of(entry));
  for (const SafetensorsGroup& group : groups) {
    std::atomic<uint64_t> written = 0;
    group.write([&](size_t entry, uint64_t offset, const void* data, size_t bytes) {
      assert(offset + bytes <= bytes_of(group.entries[entry]));
      file.write_at(begins.at(group.entries[entry].name) + offset, data, bytes);
      written += bytes;
    });
    assert(written == bytes_of(group));
  }
  file.commit();
}

void save_shards(const std::filesystem::path& path, const std::vector<SafetensorsGroup>& groups,
                 const std::map<std::string, std::string>& metadata, uint64_t most) {
  std::vector<std::vector<SafetensorsGroup>> shards(1);
  uint64_t total = 0, filled = 0;
  for (const SafetensorsGroup& group : groups) {
    const uint64_t bytes = bytes_of(group);
    if (filled + bytes > most && !shards.back().empty()) shards.emplace_back(), filled = 0;
    shards.back().push_back(group);
    filled += bytes;
    total += bytes;
  }
  if (shards.size() == 1) return save_safetensors(path, groups, metadata);
  nlohmann::json files = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        fmt::format("{}-{:05}-of-{:05}{}", path.stem().string(), i + 1, shards.size(), path.extension().string());
    for (const SafetensorsGroup& group : shards[i])
      for (const SafetensorsEntry& entry : group.entries) files[entry.name] = name;
    save_safetensors(path.parent_path() / name, shards[i], metadata);
  }
  std::filesystem::path index = path;
  index += ".index.json";
  write_file_atomically(index, to_text({{"metadata", {{"total_size", total}}}, {"weight_map", std::move(files)}}));
}

void safetensors_bytes(const std::map<std::string, Tensor>& tensors, const std::map<std::string, std::string>& metadata,
                       const std::function<void(std::string_view)>& sink) {
  show_file("safetensors", tensors, metadata, [&](const void* data, size_t bytes) {
    sink({static_cast<const char*>(data), bytes});
  });
}

std::string sha256_of_tensors(const std::map<std::string, Tensor>& tensors) {
  Sha256 hash;
  for (const SafetensorsEntry& entry : entries_of(tensors))
    for_each_block(tensors.at(entry.name), [&](const void* data, size_t bytes) { hash.update(data, bytes); });
  return hash.hex();
}

}  // namespace wick
