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

fs::path hub_cache() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface/hub";
  return fs::path(environment("HOME")) / ".cache/huggingface/hub";
}

// The Hub's cache: models--ORGANISATION--NAME/snapshots/COMMIT, with the commit of a branch in refs/.
fs::path find_in_hub_cache(const std::string& model, std::string repository) {
  repository.replace(repository.find('/'), 1, "--");
  const fs::path root = hub_cache() / ("models--" + repository), ref = root / "refs/main";
  std::error_code ignored;
  if (!fs::exists(ref, ignored)) fail_not_found(model, {model, root});
  std::string commit = read_file(ref, 1024);
  commit.erase(commit.find_last_not_of(" \r\n") + 1);
  const fs::path folder = root / "snapshots" / commit;
  if (!is_model(folder)) fail_not_found(model, {folder / "model_index.json", folder / "config.json"});
  return folder;
}

}  // namespace

fs::path resolve_model(const std::string& model) {
  check_usage(!model.empty(), "--model: expected a name, a folder or a GGUF file, found ''");
  for (const auto& [name, repository] : known_models())
    if (model == name) return repository.empty() ? find_shipped(name) : find_in_hub_cache(name, repository);
  if (is_model(fs::path(model)) || GgufFile::is_gguf(model)) return model;
  std::error_code ignored;
  const char* expected =
      "expected a GGUF file, a diffusers folder with a model_index.json or a transformers folder with a config.json";
  check(!fs::is_directory(model, ignored), "--model {}: {}, found a folder without either", model, expected);
  check(!fs::exists(model, ignored), "--model {}: {}, found a file of another kind", model, expected);
  const bool hub_name = std::count(model.begin(), model.end(), '/') == 1 && model.front() != '/' &&
                        model.front() != '.' && model.back() != '/';
  if (hub_name) return find_in_hub_cache(model, model);
  const std::vector<std::string> names = known_model_names();
  fail("--model {}: no such folder; expected a diffusers folder, a transformers folder, a GGUF file, '{}' or '{}'{}",
       model, fmt::join(names.begin(), names.end() - 1, "', '"), names.back(), did_you_mean(model, names));
}

fs::path resolve_language_model(const std::string& model) {
  const fs::path path = resolve_model(model);
  check(kind_of(path) == ModelKind::text, "--model {}: expected a language model, found one of pictures", model);
  return path;
}

}  // namespace wick::cli
