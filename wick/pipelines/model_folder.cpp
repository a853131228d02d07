#include "wick/pipelines/model_folder.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/descriptor.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/text/chat.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunk = size_t{1} << 20;
constexpr const char* kHeadWeight = "lm_head.weight";

bool is_weight_file(const fs::path& file) {
  return file.extension() == ".safetensors" ||
         file.filename().string().find(".safetensors.index.") != std::string::npos;
}

// Every shard that an index names has to be there.
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

}  // namespace

// It names the dtype by either key, or not at all, and transformers heeds it. Weights of another dtype than the model's
// are not quantised.
std::string config_of(const Checkpoint& from, DType dtype) {
  nlohmann::json config = read_json(from.config_file());
  const char* const name = dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
  for (const char* key : {"dtype", "torch_dtype"})
    if (config.contains(key)) config[key] = name;
  config.erase("quantization_config");
  return to_text(std::move(config));
}

namespace {

void check_folder(const Checkpoint& from) {
  check(!from.is_assembled(), "{}: training every weight writes a diffusers folder, and asks for one as --model",
        from.name());
}

}  // namespace

void check_elsewhere(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  check(!fs::equivalent(from, to, ignored),
        "{}: is --model itself, which would be lost; choose another --output or --name", to.string());
}

void write_folder(const fs::path& to, const std::function<void()>& write) {
  std::error_code ignored;
  const bool is_new = !fs::exists(to) || (fs::is_directory(to) && fs::is_empty(to, ignored));
  try {
    write();
  } catch (...) {
    if (is_new) fs::remove_all(to, ignored);
    throw;
  }
}

void write_model_folder(const Checkpoint& from, const fs::path& to, const std::set<std::string>& components,
                        const std::function<void(const std::string& component, const fs::path& folder)>& write) {
  check_elsewhere(from.path(), to);
  check_folder(from);
  begin_folder(to, kDiffusersLast);
  for (const auto& [name, part] : from.components()) {
    make_directories(to / name);
    for (const fs::path& file : part.files())
      if (!components.contains(name) || !is_weight_file(file)) copy_whole(file, to / name / file.filename());
  }
  for (const std::string& component : components) write(component, to / component);
  copy_whole(from.config_file(), to / kDiffusersLast);
}

void copy_without_weights(const Checkpoint& component, const fs::path& to) {
  for (const fs::path& file : component.files())
    if (!is_weight_file(file)) copy_whole(file, to / file.filename());
}

uint64_t copied_bytes(const Checkpoint& from, const std::string& component) {
  check_folder(from);
  uint64_t bytes = 0;
  for (const auto& [name, part] : from.components())
    for (const fs::path& file : part.files())
      if (name != component || !is_weight_file(file)) bytes += fs::file_size(file);
  return bytes;
}

std::vector<fs::path> weight_files(const Checkpoint& folder) {
  check_shards(folder.path());
  std::vector<fs::path> files;
  for (const fs::path& file : folder.files())
    if (file.extension() == ".safetensors" && file.filename().string().starts_with("model")) files.push_back(file);
  check(!files.empty(), "{}: expected model.safetensors or its shards, found neither", folder.name());
  return files;
}

void put_chat_template(const fs::path& folder, const std::string& jinja) {
  const fs::path file = folder / "tokenizer_config.json";
  if (fs::exists(file)) {
    nlohmann::json config = read_json(file);
    if (nlohmann::json* held = config.contains("chat_template") ? &config["chat_template"] : nullptr) {
      nlohmann::json* place = held;
      if (held->is_array())
        for (nlohmann::json& named : *held)
          if (named.is_object() && named.value("name", "") == "default") place = &named["template"];
      *place = jinja;
      write_file_atomically(file, to_text(config));
    }
  }
  write_file_atomically(folder / kChatTemplateFile, jinja);
}

namespace {

// Names the head in an index of shards, if there is one.
void put_head_into_index(const fs::path& folder, const std::string& shard) {
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(index)) return;
  nlohmann::json json = read_json(index);
  const auto written = SafetensorsFile::open(folder / shard);
  nlohmann::json& map = json["weight_map"];
  if (!map.contains(kHeadWeight) && json.contains("metadata") && json["metadata"].contains("total_size"))
    json["metadata"]["total_size"] =
        json["metadata"]["total_size"].get<uint64_t>() + *written.tensors().at(kHeadWeight).bytes;
  map[kHeadWeight] = shard;
  write_file_atomically(index, to_text(std::move(json)));
}

}  // namespace

std::string untied_config(const std::string& config, const fs::path& file) {
  nlohmann::json json = parse_json(config, file.string());
  json["tie_word_embeddings"] = false;
  return to_text(std::move(json));
}

void copy_model_files(const Checkpoint& from, const fs::path& to, std::optional<DType> dtype,
                      const std::optional<std::string>& chat_template, const std::optional<std::string>& new_head) {
  for (const fs::path& file : from.files())
    if (file.extension() != ".safetensors" && file.filename() != kTransformersLast)
      copy_whole(file, to / file.filename());
  if (chat_template) put_chat_template(to, *chat_template);
  if (new_head) put_head_into_index(to, *new_head);
  std::string config = dtype ? config_of(from, *dtype) : read_file(from.config_file());
  if (new_head) config = untied_config(config, from.config_file());
  write_file_atomically(to / kTransformersLast, config);
}

void write_language_model(const Checkpoint& from, const fs::path& to, const std::string& config,
                          const std::function<void(const fs::path& file)>& write,
                          const std::optional<std::string>& chat_template) {
  check_elsewhere(from.path(), to);
  begin_folder(to, kTransformersLast);
  for (const fs::path& file : from.files())
    if (!is_weight_file(file) && file.filename() != kTransformersLast) copy_whole(file, to / file.filename());
  if (chat_template) put_chat_template(to, *chat_template);
  write(to / "model.safetensors");
  write_file_atomically(to / kTransformersLast, config);
}

void write_language_model(const Checkpoint& from, const fs::path& to, const Weights& weights, DType dtype,
                          const std::optional<std::string>& chat_template) {
  write_language_model(
      from, to, config_of(from, dtype), [&](const fs::path& file) { weights.save(file, dtype); }, chat_template);
}

}  // namespace wick
