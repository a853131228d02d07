#include "wick/nn/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/gguf.h"
#include "wick/io/sha256.h"
#include "wick/nn/gguf_model.h"
#include "wick/nn/recognise.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Every component that a pipeline of diffusers may consist of.
constexpr const char* kComponents[] = {"scheduler",   "text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer",
                                       "tokenizer_2", "tokenizer_3",  "transformer",    "unet",           "vae"};

constexpr ModelPart kParts[] = {
    {"transformer", "transformer", "FILE", "Transformer of FLUX or SD3, or UNet of SDXL, instead of the model's"},
    {"clip_l", "CLIP-L", "FILE", "CLIP-L text encoder, instead of the model's"},
    {"clip_g", "OpenCLIP bigG", "FILE", "OpenCLIP bigG text encoder of SD3 or SDXL, instead of the model's"},
    {"t5", "T5 encoder", "FILE", "T5 text encoder, instead of the model's"},
    {"vae", "VAE", "FILE", "VAE, instead of the model's"},
    {"clip_tokenizer", "tokenizer of CLIP", "PATH", "Folder of CLIP's tokenizer, instead of the model's"},
    {"t5_tokenizer", "tokenizer of T5", "PATH",
     "Folder, tokenizer.json or spiece.model of T5, instead of the model's"}};

// The components that a part is, by family.
struct Role {
  std::string part, component;
  std::optional<Network> network;  // none: a tokenizer
};
struct Family {
  Network denoiser;
  const char *name, *pipeline;  // how the names of diffusers' classes begin
  std::vector<Role> roles;
};
const std::vector<Family>& families() {
  static const std::vector<Family> all = {{Network::flux,
                                           "FLUX",
                                           "Flux",
                                           {{"transformer", "transformer", Network::flux},
                                            {"clip_l", "text_encoder", Network::clip_l},
                                            {"t5", "text_encoder_2", Network::t5},
                                            {"vae", "vae", Network::vae},
                                            {"clip_tokenizer", "tokenizer", {}},
                                            {"t5_tokenizer", "tokenizer_2", {}}}},
                                          {Network::sd3,
                                           "SD3",
                                           "StableDiffusion3",
                                           {{"transformer", "transformer", Network::sd3},
                                            {"clip_l", "text_encoder", Network::clip_l},
                                            {"clip_g", "text_encoder_2", Network::clip_g},
                                            {"t5", "text_encoder_3", Network::t5},
                                            {"vae", "vae", Network::vae},
                                            {"clip_tokenizer", "tokenizer", {}},
                                            {"clip_tokenizer", "tokenizer_2", {}},
                                            {"t5_tokenizer", "tokenizer_3", {}}}},
                                          {Network::sdxl,
                                           "SDXL",
                                           "StableDiffusionXL",
                                           {{"transformer", "unet", Network::sdxl},
                                            {"clip_l", "text_encoder", Network::clip_l},
                                            {"clip_g", "text_encoder_2", Network::clip_g},
                                            {"vae", "vae", Network::vae},
                                            {"clip_tokenizer", "tokenizer", {}},
                                            {"clip_tokenizer", "tokenizer_2", {}}}}};
  return all;
}

const ModelPart& part_called(const std::string& name) {
  const auto* part = std::ranges::find_if(kParts, [&](const ModelPart& p) { return name == p.name; });
  check(part != std::end(kParts), "a model has no part called {}", name);
  return *part;
}

const Family* family_of(const std::map<Network, std::string>& networks) {
  const auto found = std::ranges::find_if(families(), [&](const Family& f) { return networks.contains(f.denoiser); });
  return found == families().end() ? nullptr : &*found;
}

const Family& family_called(const std::string& name) {
  const auto found = std::ranges::find_if(families(), [&](const Family& f) { return name == f.name; });
  check(found != families().end(), "there is no family called {}", name);
  return *found;
}

const Role* role_of(const Family& family, const std::string& component) {
  const auto role = std::ranges::find(family.roles, component, &Role::component);
  return role == family.roles.end() ? nullptr : &*role;
}

const Family* family_by_class(const Checkpoint& model) {
  const std::string name = model.has_config() ? model.config().text_or("_class_name", "") : "";
  const auto found = std::ranges::find_if(families(), [&](const Family& f) { return name.starts_with(f.pipeline); });
  return found == families().end() ? nullptr : &*found;
}

using Parts = std::map<std::string, fs::path>;

// By the transformer that is given, else by the model's.
const Family& family_with(const Checkpoint& model, const Parts& parts) {
  const auto given = parts.find("transformer");
  const bool has_transformer = model.has("transformer") && model.component("transformer").has_weights();
  const TensorSource source = given != parts.end() ? open_source(given->second)
                              : has_transformer    ? model.component("transformer").source()
                              : model.has("unet")  ? model.component("unet").source()
                                                   : model.source();
  const Family* family = family_of(networks_in(source));
  check(family, "{}: expected the transformer of FLUX or SD3, or SDXL's UNet, found {}", source.name,
        contents_in_words(source));
  return *family;
}

// Where the network of a part stands in the file that is given for it.
std::string prefix_in(const Role& role, const fs::path& path) {
  std::error_code ignored;
  check(fs::exists(path, ignored), "{} {}: there is no such file", part_flag(role.part), path.string());
  if (!role.network) return "";
  const TensorSource source = open_source(path);
  const auto networks = networks_in(source);
  const auto found = networks.find(*role.network);
  check(found != networks.end(), "{} {}: expected {}, found {}", part_flag(role.part), path.string(),
        in_words(*role.network), contents_in_words(source));
  return found->second;
}

// A safetensors file begins with the length of its header, and that with a brace.
bool looks_like_safetensors(const fs::path& path) {
  std::error_code ignored;
  std::array<char, 9> start{};
  return fs::is_regular_file(path, ignored) && FileDescriptor(path).read_at(0, start.data(), start.size()) == 9 &&
         start[8] == '{';
}

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

std::span<const ModelPart> model_parts() { return kParts; }

std::string part_flag(std::string part) {
  std::ranges::replace(part, '_', '-');
  return "--" + part;
}

Checkpoint::Checkpoint(const fs::path& path) : path_(path) {
  const bool gguf = GgufFile::is_gguf(path);
  if (gguf ? !is_language_model(path) : looks_like_safetensors(path)) {
    const auto networks = networks_in(open_source(path));
    gguf_ = gguf && networks.empty();  // its config says what it is
    if (const Family* family = family_of(networks)) {
      pipeline_ = true;
      family_ = family->name;
      for (const Role& role : family->roles)
        if (role.network && networks.contains(*role.network))
          components_.emplace(role.component, Checkpoint(path, networks.at(*role.network)));
    }
    if (gguf_) config_file_ = path;
    return;
  }
  std::error_code ignored;
  gguf_ = gguf;
  pipeline_ = fs::exists(path / kPipelineConfig, ignored);
  config_file_ = gguf ? path : path / (pipeline_ ? kPipelineConfig : kNetworkConfig);
  for (const char* name : kComponents)
    if (pipeline_ && fs::is_directory(path / name, ignored)) components_.emplace(name, component(name));
}

Checkpoint::Checkpoint(const ModelFiles& files) {
  const auto transformer = files.parts.find("transformer");
  if (!files.model.empty())
    *this = Checkpoint(files.model);
  else if (transformer != files.parts.end())
    *this = Checkpoint(transformer->second);
  else
    fail_usage("{}: expected a model beside it, as --model or as --transformer", part_flag(files.parts.begin()->first));
  if (!files.parts.empty()) *this = with_parts(files.parts);
}

Checkpoint Checkpoint::of_configs(const std::string& name, const std::string& family,
                                  const std::map<std::string, std::string>& configs) {
  Checkpoint model(name, "");
  model.known_config_ = "{}";
  model.family_ = family;
  model.pipeline_ = true;
  const auto add = [&](const std::string& component, const std::string& config) {
    Checkpoint& made = model.components_.emplace(component, Checkpoint(model.path_ / component, "")).first->second;
    made.known_config_ = config;
  };
  for (const auto& [component, config] : configs) add(component, config);
  for (const Role& role : family_called(family).roles)
    if (!role.network) add(role.component, "{}");
  return model;
}

Checkpoint Checkpoint::with_parts(const Parts& parts) const {
  Checkpoint model = *this;
  if (parts.empty()) return model;
  const bool has_files = known_config_.empty() || parts.contains("transformer");
  const Family& family = has_files ? family_with(*this, parts) : family_called(family_);
  const Family* own = is_assembled() ? &family_called(family_) : family_by_class(*this);
  const auto given = parts.find("transformer");
  check(!own || own == &family, "{}: is {}, but {} is of the family {}",
        given == parts.end() ? component("transformer").name() : given->second.string(), in_words(family.denoiser),
        name(), own ? own->name : "");
  model.family_ = family.name;
  model.pipeline_ = true;
  for (const auto& [part, path] : parts) {
    const auto has_role = [&part = part](const Role& role) { return role.part == part; };
    check(std::ranges::any_of(family.roles, has_role), "{} {}: {} has no {}", part_flag(part), path.string(),
          family.name, part_called(part).words);
    for (const Role& role : family.roles) {
      if (!has_role(role)) continue;
      const std::string prefix = prefix_in(role, path);
      model.components_.insert_or_assign(role.component,
                                         fs::is_directory(path) ? Checkpoint(path) : Checkpoint(path, prefix));
    }
  }
  return model;
}

Checkpoint Checkpoint::component(const std::string& name) const {
  if (const auto found = components_.find(name); found != components_.end()) return found->second;
  if (is_assembled()) {
    Checkpoint none(path_, "");
    none.lacking_ = lacking(name);
    return none;
  }
  Checkpoint part(path_ / name);
  if (name == "scheduler") part.config_file_ = part.path_ / "scheduler_config.json";
  std::error_code ignored;
  if (pipeline_ && !fs::exists(part.path_, ignored)) part.lacking_ = lacking(name);
  return part;
}

std::string Checkpoint::lacking(const std::string& component) const {
  const Family* family = is_assembled() ? &family_called(family_) : family_by_class(*this);
  const Role* role = family ? role_of(*family, component) : nullptr;
  const std::string flag = role ? part_flag(role->part) + " " + part_called(role->part).item : "",
                    words = role ? part_called(role->part).words : component;
  if (is_assembled()) return fmt::format("{}: has no {}{}", name(), words, role ? "; pass it with " + flag : "");
  return fmt::format("{}: there is no such folder; copy the model again{}", (path_ / component).string(),
                     role ? fmt::format(", or pass its {} with {}", words, flag) : "");
}

bool Checkpoint::has_config() const {
  std::error_code ignored;
  return !known_config_.empty() || fs::exists(config_file_, ignored);
}

Config Checkpoint::config() const {
  check(lacking_.empty(), "{}", lacking_);
  if (!known_config_.empty()) return Config::parse(known_config_, name());
  check(!config_file_.empty(), "{}: a file of weights has no config; give a folder that has one", name());
  return gguf_ ? Config::parse(config_json(GgufFile::open(path_)), name()) : Config::read(config_file_);
}

bool Checkpoint::has_weights() const {
  std::error_code ignored;
  return lacking_.empty() && known_config_.empty() &&
         (fs::is_regular_file(path_, ignored) || weights_in(path_).has_value());
}

TensorSource Checkpoint::source() const {
  check(lacking_.empty(), "{}", lacking_);
  check(known_config_.empty(), "{}: there are no weights", name());
  return open_source(path_, prefix_);
}

Weights Checkpoint::weights(const WeightsOptions& options) const { return {source(), options}; }

std::vector<fs::path> Checkpoint::files() const {
  if (!is_pipeline() && !known_config_.empty()) return {};
  if (!is_pipeline()) return fs::is_directory(path_) ? files_in(path_) : std::vector{path_};
  std::vector<fs::path> all;
  for (const auto& [name, component] : components_)
    for (const fs::path& file : component.files())
      if (std::ranges::find(all, file) == all.end()) all.push_back(file);
  return all;
}

std::string Checkpoint::fingerprint() const {
  Sha256 hash;
  if (!is_pipeline()) hash_files(hash, "", *this);
  for (const auto& [name, component] : components_) hash_files(hash, name, component);
  return hash.hex();
}

}  // namespace wick
