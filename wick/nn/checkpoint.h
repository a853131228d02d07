// The files of a model, wherever each of its components lies: a diffusers folder (several components), a transformers
// folder (one network with its tokenizer), or a GGUF file of a language model. A component is a checkpoint itself.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "wick/io/config.h"
#include "wick/nn/weights.h"

namespace wick {

inline constexpr const char *kPipelineConfig = "model_index.json", *kNetworkConfig = "config.json";

class Checkpoint {
 public:
  // Reads only the first bytes of a file, to recognise GGUF. A path with nothing there is an Error once it is read.
  Checkpoint(const std::filesystem::path& path);  // NOLINT: implicit: a path names a checkpoint
  Checkpoint(const char* path) : Checkpoint(std::filesystem::path(path)) {}  // NOLINT: implicit

  const std::filesystem::path& path() const { return path_; }
  std::string name() const { return path_.string(); }  // for errors
  bool is_gguf() const { return gguf_; }
  bool is_pipeline() const { return config_file_.filename() == kPipelineConfig; }  // of several components

  // Under diffusers' names, sorted: networks, "scheduler", and tokenizers, which are read from the path(). One network
  // alone has no components.
  const std::map<std::string, Checkpoint>& components() const { return components_; }
  bool has(const std::string& component) const { return components_.contains(component); }
  Checkpoint component(const std::string& name) const;  // one that is not there has the path where it should be

  bool has_config() const;
  // config.json, scheduler_config.json of a scheduler, model_index.json of a pipeline; the facts of a GGUF file under
  // transformers' keys (nn/gguf_model.h).
  Config config() const;
  const std::filesystem::path& config_file() const { return config_file_; }
  bool has_weights() const;
  TensorSource source() const;  // the weights under their stored names
  Weights weights(const WeightsOptions& options = {}) const;

  // The configs, weights and tokenizer files of a model and its components, sorted; not a pipeline's own config.
  std::vector<std::filesystem::path> files() const;
  // SHA-256 over the files' names and contents. Samples stand for the rest of files above 64 MiB: it tells models
  // apart, it does not certify them.
  std::string fingerprint() const;

 private:
  std::filesystem::path path_, config_file_;
  bool gguf_;
  std::map<std::string, Checkpoint> components_;
};

}  // namespace wick
