#include "model_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/gguf.h"
#include "wick/io/nearest.h"
#include "wick/nn/gguf_model.h"
#include "wick/nn/recognise.h"
#include "wick/pipelines/known_models.h"

namespace wick::cli {
namespace {

namespace fs = std::filesystem;

bool is_model(const Checkpoint& model) { return model.is_pipeline() || kind_of(model) == ModelKind::text; }

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

[[noreturn]] void fail_not_found(const std::string& model, const std::vector<fs::path>& tried) {
  std::vector<std::string> names;
  for (const fs::path& path : tried) names.push_back(path.string());
  fail("--model {}: not found; looked for {}", model, fmt::join(names, ", "));
}

// $WICK_MODELS, then models/ in the folders above the program (a build tree), then the install prefix.
fs::path find_shipped(const std::string& name) {
  std::vector<fs::path> tried;
  if (const std::string models = environment("WICK_MODELS"); !models.empty()) tried.push_back(fs::path(models) / name);
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  fs::path folder = program.parent_path();
  tried.push_back(folder.parent_path() / "share/wick/models" / name);
  for (int up = 0; up < 4 && folder.has_relative_path(); ++up, folder = folder.parent_path())
    tried.push_back(folder / "models" / name);
  const auto found = std::find_if(tried.begin(), tried.end(), is_model);
  if (found == tried.end()) fail_not_found(name, tried);
  return *found;
}

// As huggingface_hub finds it (constants.py).
fs::path hub_cache() {
  const auto folder_in = [](const char* name) {
    const std::string folder = environment(name);
    return folder.starts_with("~/") ? environment("HOME") + folder.substr(1) : folder;
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string cache = folder_in(name); !cache.empty()) return cache;
  if (const std::string home = folder_in("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface/hub";
  return fs::path(environment("HOME")) / ".cache/huggingface/hub";
}

// The Hub's cache: models--ORGANISATION--NAME/snapshots/COMMIT, with the commit of a branch in refs/.
fs::path cache_of(std::string repository) {
  repository.replace(repository.find('/'), 1, "--");
  return hub_cache() / ("models--" + repository);
}

// "hf download NAME", and files that will do in its place.
std::string how_to_get(const std::string& repository) {
  std::string text = fmt::format(
      "get it by `hf download {}`, after accepting the licence on the model's page where that asks for it", repository);
  const KnownModel* known = find_known(repository);
  if (known && known->configs.contains("transformer"))
    text += fmt::format(", or pass its files with --transformer, --clip-l, {}--t5 and --vae",
                        known->configs.contains("text_encoder_3") ? "--clip-g, " : "");
  return text;
}

bool is_in_hub_cache(const std::string& repository) {
  std::error_code ignored;
  return fs::exists(cache_of(repository) / "refs/main", ignored);
}

fs::path find_in_hub_cache(const std::string& model, const std::string& repository) {
  const fs::path root = cache_of(repository);
  check(is_in_hub_cache(repository), "--model {}: there is no {}; {}", model, root.string(), how_to_get(repository));
  std::string commit = read_file(root / "refs/main", 1024);
  commit.erase(commit.find_last_not_of(" \r\n") + 1);
  const fs::path folder = root / "snapshots" / commit;
  check(is_model(folder), "--model {}: {} has neither model_index.json nor config.json; {}", model, folder.string(),
        how_to_get(repository));
  return folder;
}

bool names_weights(const fs::path& path) {
  std::error_code ignored;
  static constexpr std::string_view kExtensions[] = {".safetensors", ".sft", ".gguf", ".ckpt", ".pt", ".pth", ".bin"};
  return fs::is_regular_file(path, ignored) &&
         std::ranges::find(kExtensions, path.extension().string()) != std::end(kExtensions);
}

// A file of weights that is no model: told as what it is, and where it belongs.
[[noreturn]] void fail_other_file(const std::string& model, const char* expected) {
  const TensorSource source = open_source(model);  // says what is no safetensors file
  const auto networks = networks_in(source);
  const std::pair<Network, const char*> flags[] = {
      {Network::clip_l, "clip_l"}, {Network::clip_g, "clip_g"}, {Network::t5, "t5"}, {Network::vae, "vae"}};
  for (const auto& [network, part] : flags)
    if (networks.size() == 1 && networks.contains(network))
      fail("--model {}: found {} alone; pass it with {}", model, in_words(network), part_flag(part));
  fail("--model {}: {}, found {}", model, expected, contents_in_words(source));
}

}  // namespace

Checkpoint resolve_model(const ModelFiles& files) {
  if (files.model.empty() && !files.parts.empty()) return files;
  return ModelFiles{.model = resolve_model(files.model.string()), .parts = files.parts};
}

Checkpoint resolve_model_to_plan(const ModelFiles& files) {
  const KnownModel* known = find_known(files.model.string());
  const bool has_configs = known && !known->configs.empty() && !is_in_hub_cache(known->repository);
  return has_configs ? known->without_files().with_parts(files.parts) : resolve_model(files);
}

fs::path resolve_model(const std::string& model) {
  check_usage(!model.empty(), "--model: expected a name, a folder or a GGUF file, found ''");
  for (const KnownModel& known : known_models())
    if (model == known.name)
      return known.repository.empty() ? find_shipped(model) : find_in_hub_cache(model, known.repository);
  const bool is_gguf = GgufFile::is_gguf(model);
  if (is_gguf ? is_language_model(fs::path(model)) || Checkpoint(model).is_pipeline() : is_model(fs::path(model)))
    return model;
  std::error_code ignored;
  const char* expected =
      "expected a GGUF file, a model of pictures in one file, a diffusers folder with a model_index.json or a "
      "transformers folder with a config.json";
  check(!fs::is_directory(model, ignored), "--model {}: {}, found a folder without either", model, expected);
  if (names_weights(model) || is_gguf) fail_other_file(model, expected);
  check(!fs::exists(model, ignored), "--model {}: {}, found a file of another kind", model, expected);
  const bool hub_name = std::count(model.begin(), model.end(), '/') == 1 && model.front() != '/' &&
                        model.front() != '.' && model.back() != '/';
  if (hub_name) return find_in_hub_cache(model, model);
  const std::vector<std::string> names = known_model_names();
  fail(
      "--model {}: no such file or folder; expected a diffusers or transformers folder, a model of pictures in one "
      "safetensors file, a GGUF file, '{}' or '{}'{}",
      model, fmt::join(names.begin(), names.end() - 1, "', '"), names.back(), did_you_mean(model, names));
}

fs::path resolve_language_model(const std::string& model) {
  const fs::path path = resolve_model(model);
  check(kind_of(path) == ModelKind::text, "--model {}: expected a language model, found one of pictures", model);
  return path;
}

}  // namespace wick::cli
