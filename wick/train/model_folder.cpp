#include "wick/train/model_folder.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/io/sha256.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr std::array kComponents = {"scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2",
                                    "unet",      "vae"};
constexpr size_t kChunk = size_t{1} << 20;

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string extension = entry->path().extension().string();
    for (const char* kept : {".json", ".txt", ".safetensors", ".model", ".jinja"})
      if (extension == kept) files.push_back(entry->path());
  }
  check(!error, "{}: cannot be read: {}", folder.string(), error.message());
  std::sort(files.begin(), files.end());
  return files;
}

bool is_weight_file(const fs::path& file) {
  return file.extension() == ".safetensors" ||
         file.filename().string().find(".safetensors.index.") != std::string::npos;
}

// Of the shards that an index names none may be missing.
void check_shards(const fs::path& folder) {
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(folder / "model.safetensors") || !fs::exists(index)) return;
  for (const auto& [tensor, shard] : read_safetensors_index(index)) {
    const fs::path file = folder / shard;
    check(fs::exists(file), "{}: no such file, but {} names it; fetch it again", file.string(),
          index.filename().string());
  }
}

void copy_whole(const fs::path& from, const fs::path& to) {
  const FileDescriptor in(from);
  AtomicFile out(to);
  std::vector<char> chunk(kChunk);
  uint64_t offset = 0;
  while (const size_t count = in.read_at(offset, chunk.data(), chunk.size())) {
    out.write(chunk.data(), count);
    offset += count;
  }
  out.commit();
}

// A config names the dtype by either key, or not at all, and transformers heeds it.
void copy_config(const fs::path& from, const fs::path& to, std::optional<DType> dtype) {
  if (!dtype) return copy_whole(from / kTransformersLast, to / kTransformersLast);
  nlohmann::json config = read_json(from / kTransformersLast);
  const char* const name = dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
  for (const char* key : {"dtype", "torch_dtype"})
    if (config.contains(key)) config[key] = name;
  write_file_atomically(to / kTransformersLast, to_text(std::move(config)));
}

void hash_sampled(Sha256& hash, const fs::path& file) {
  constexpr uint64_t kWhole = uint64_t{64} << 20;
  const FileDescriptor in(file);
  const uint64_t bytes = in.size();
  const uint64_t stride = std::max<uint64_t>(kChunk, bytes <= kWhole ? 0 : bytes / (kWhole / kChunk));
  std::vector<char> chunk(kChunk);
  for (uint64_t offset = 0; offset < bytes; offset += stride) {
    const auto wanted = size_t(std::min<uint64_t>(kChunk, bytes - offset));
    check(in.read_at(offset, chunk.data(), wanted) == wanted, "{}: ends before its {}", file.string(),
          count_of(bytes, "byte"));
    hash.update(chunk.data(), wanted);
  }
}

}  // namespace

void check_elsewhere(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  check(!fs::equivalent(from, to, ignored), "{}: is the model that is trained; choose another --output or --name",
        to.string());
}

void write_model_folder(const fs::path& from, const fs::path& to, const std::string& component,
                        const std::function<void(const fs::path& folder)>& write) {
  check_elsewhere(from, to);
  begin_folder(to, kDiffusersLast);
  for (const std::string part : kComponents) {
    make_directories(to / part);
    for (const fs::path& file : files_of(from / part))
      if (part != component || !is_weight_file(file)) copy_whole(file, to / part / file.filename());
  }
  write(to / component);
  copy_whole(from / kDiffusersLast, to / kDiffusersLast);
}

uint64_t copied_bytes(const fs::path& from, const std::string& component) {
  uint64_t bytes = 0;
  for (const std::string part : kComponents)
    for (const fs::path& file : files_of(from / part))
      if (part != component || !is_weight_file(file)) bytes += fs::file_size(file);
  return bytes;
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  check_shards(folder);
  std::vector<fs::path> files;
  for (const fs::path& file : files_of(folder))
    if (file.extension() == ".safetensors" && file.filename().string().starts_with("model")) files.push_back(file);
  check(!files.empty(), "{}: expected model.safetensors or its shards, found neither", folder.string());
  return files;
}

void copy_model_files(const fs::path& from, const fs::path& to, std::optional<DType> dtype) {
  for (const fs::path& file : files_of(from))
    if (file.extension() != ".safetensors" && file.filename() != kTransformersLast)
      copy_whole(file, to / file.filename());
  copy_config(from, to, dtype);
}

void write_language_model(const fs::path& from, const fs::path& to, const Weights& weights, DType dtype) {
  check_elsewhere(from, to);
  begin_folder(to, kTransformersLast);
  for (const fs::path& file : files_of(from))
    if (!is_weight_file(file) && file.filename() != kTransformersLast) copy_whole(file, to / file.filename());
  weights.save(to / "model.safetensors", dtype);
  copy_config(from, to, dtype);
}

std::string model_fingerprint(const fs::path& model) {
  Sha256 hash;
  const auto add = [&](const std::string& part, const std::vector<fs::path>& files) {
    for (const fs::path& file : files) {
      const std::string name = part + '/' + file.filename().string() + '\n';
      hash.update(name.data(), name.size());
      hash_sampled(hash, file);
    }
  };
  if (!fs::is_directory(model))
    add("", {model});
  else if (fs::exists(model / kDiffusersLast))
    for (const char* part : kComponents) add(part, files_of(model / part));
  else
    add("", files_of(model));
  return hash.hex();
}

}  // namespace wick
