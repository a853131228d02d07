#include "wick/nn/checkpoint.h"

#include <algorithm>
#include <system_error>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/gguf.h"
#include "wick/io/sha256.h"
#include "wick/nn/gguf_model.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Every component that a pipeline of diffusers may consist of.
constexpr const char* kComponents[] = {"scheduler",   "text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer",
                                       "tokenizer_2", "tokenizer_3",  "transformer",    "unet",           "vae"};

std::vector<fs::path> files_in(const fs::path& folder) {
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

void hash_sampled(Sha256& hash, const fs::path& file) {
  constexpr size_t kChunk = size_t{1} << 20;
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

void hash_files(Sha256& hash, const std::string& component, const Checkpoint& checkpoint) {
  for (const fs::path& file : checkpoint.files()) {
    const std::string name = component + '/' + file.filename().string() + '\n';
    hash.update(name.data(), name.size());
    hash_sampled(hash, file);
  }
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& path) : path_(path), gguf_(GgufFile::is_gguf(path)) {
  std::error_code ignored;
  const bool pipeline = fs::exists(path / kPipelineConfig, ignored);
  config_file_ = gguf_ ? path : path / (pipeline ? kPipelineConfig : kNetworkConfig);
  if (!pipeline) return;
  for (const char* name : kComponents)
    if (fs::is_directory(path / name, ignored)) components_.emplace(name, component(name));
}

Checkpoint Checkpoint::component(const std::string& name) const {
  if (const auto found = components_.find(name); found != components_.end()) return found->second;
  Checkpoint part(path_ / name);
  if (name == "scheduler") part.config_file_ = part.path_ / "scheduler_config.json";
  return part;
}

bool Checkpoint::has_config() const {
  std::error_code ignored;
  return fs::exists(config_file_, ignored);
}

Config Checkpoint::config() const {
  return gguf_ ? Config::parse(config_json(GgufFile::open(path_)), name()) : Config::read(config_file_);
}

bool Checkpoint::has_weights() const {
  std::error_code ignored;
  return fs::is_regular_file(path_, ignored) || weights_in(path_).has_value();
}

TensorSource Checkpoint::source() const { return open_source(path_); }

Weights Checkpoint::weights(const WeightsOptions& options) const { return {source(), options}; }

std::vector<fs::path> Checkpoint::files() const {
  if (!is_pipeline()) return fs::is_directory(path_) ? files_in(path_) : std::vector{path_};
  std::vector<fs::path> all;
  for (const auto& [name, component] : components_)
    for (const fs::path& file : component.files()) all.push_back(file);
  return all;
}

std::string Checkpoint::fingerprint() const {
  Sha256 hash;
  if (!is_pipeline()) hash_files(hash, "", *this);
  for (const auto& [name, component] : components_) hash_files(hash, name, component);
  return hash.hex();
}

}  // namespace wick
