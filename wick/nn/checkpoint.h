// The files of a model, wherever each of its components lies: a diffusers folder (several components), a transformers
// folder (one network with its tokenizer), a GGUF file of a language model, one file of a whole model of pictures as
// ComfyUI writes it, or files given one by one. A component is a checkpoint itself.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "wick/io/config.h"
#include "wick/nn/weights.h"

namespace wick {

inline constexpr const char *kPipelineConfig = "model_index.json", *kNetworkConfig = "config.json";

// A part of a model of pictures that may be given apart, in a file or folder of its own.
struct ModelPart {
  const char* name;   // "clip_l"
  const char* words;  // "CLIP-L"
  const char* item;   // of its flag: "FILE"
  const char* help;
};
std::span<const ModelPart> model_parts();
std::string part_flag(std::string part);  // "--clip-l"

struct ModelFiles {
  std::filesystem::path model = {};                         // empty where there is a transformer among the parts
  std::map<std::string, std::filesystem::path> parts = {};  // by name, beside the model or instead of its own
};

class Checkpoint {
 public:
  // Reads no more of a file than tells what it is. A path with nothing there is an Error once it is read.
  Checkpoint(const std::filesystem::path& path);  // NOLINT: implicit: a path names a checkpoint
  Checkpoint(const char* path) : Checkpoint(std::filesystem::path(path)) {}  // NOLINT: implicit
  // Throws Error for a part that is something else, and for one that the model's family does not have.
  Checkpoint(const ModelFiles& files);  // NOLINT: implicit
  // A pipeline without files, of which the configs are known: a JSON text for each component but the tokenizers.
  // `family` is "FLUX", "SD3" or "SDXL", and `name` stands for a path in errors.
  static Checkpoint of_configs(const std::string& name, const std::string& family,
                               const std::map<std::string, std::string>& configs);
  // The same model with parts in place of its own, as in ModelFiles.
  Checkpoint with_parts(const std::map<std::string, std::filesystem::path>& parts) const;

  const std::filesystem::path& path() const { return path_; }
  std::string name() const { return path_.string(); }     // for errors
  bool is_gguf() const { return gguf_; }                  // of a language model
  bool is_pipeline() const { return pipeline_; }          // of several components
  bool is_assembled() const { return !family_.empty(); }  // a pipeline of parts rather than a folder of diffusers

  // Under diffusers' names, sorted: networks, "scheduler", and tokenizers, which are read from the path(). One network
  // alone has no components.
  const std::map<std::string, Checkpoint>& components() const { return components_; }
  bool has(const std::string& component) const { return components_.contains(component); }
  // One that is not there has the path where it should be, or is an Error that names the flag for it once it is read.
  Checkpoint component(const std::string& name) const;

  bool has_config() const;
  // config.json, scheduler_config.json of a scheduler, model_index.json of a pipeline; the facts of a GGUF file under
  // transformers' keys (nn/gguf_model.h).
  Config config() const;
  const std::filesystem::path& config_file() const { return config_file_; }
  bool has_weights() const;
  TensorSource source() const;  // the weights under their stored names
  Weights weights(const WeightsOptions& options = {}) const;

  // The configs, weights and tokenizer files of a model and its components, sorted; not a pipeline's own config. None
  // of a model without files.
  std::vector<std::filesystem::path> files() const;
  // SHA-256 over the files' names and contents. Samples stand for the rest of files above 64 MiB: it tells models
  // apart, it does not certify them.
  std::string fingerprint() const;

 private:
  // One network of a file, a tokenizer, or a component without files.
  Checkpoint(std::filesystem::path file, std::string prefix) : path_(std::move(file)), prefix_(std::move(prefix)) {}
  std::string lacking(const std::string& component) const;

  std::filesystem::path path_, config_file_;
  std::string known_config_;  // JSON, in place of files
  std::string prefix_;        // of the names in the file
  std::string family_;        // of a pipeline of files: "FLUX"
  std::string lacking_;       // the Error of a component that is not there
  bool gguf_ = false, pipeline_ = false;
  std::map<std::string, Checkpoint> components_;
};

}  // namespace wick
