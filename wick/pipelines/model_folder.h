// Folders of models with other weights in them, diffusers' and transformers'.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "wick/nn/checkpoint.h"

namespace wick {

// The files of diffusers' and of transformers' folders that are written last: a folder that has its own is whole.
inline constexpr const char *kDiffusersLast = kPipelineConfig, *kTransformersLast = kNetworkConfig;

// Throws Error if `to` is the folder `from`, which would be lost: the functions below do, and a run before its first
// step.
void check_elsewhere(const std::filesystem::path& from, const std::filesystem::path& to);

// Lets `write` make the folder `to`, and leaves no half of a model there after an error, unless it held files before.
void write_folder(const std::filesystem::path& to, const std::function<void()>& write);

// Makes `to` the model `from` with other weights for some of its components: copies all other files of the model, lets
// `write` put each component's weight files (and config, if that changes) into the folder it is given.
void write_model_folder(
    const Checkpoint& from, const std::filesystem::path& to, const std::set<std::string>& components,
    const std::function<void(const std::string& component, const std::filesystem::path& folder)>& write);

// A component's or language model's config.json, which tells of `dtype` if it told of one before.
std::string config_of(const Checkpoint& from, DType dtype);

// A language model's config.json of a model whose head is not the embeddings' table any more. `file` is for errors.
std::string untied_config(const std::string& config, const std::filesystem::path& file);

// Copies a component's files but those of its weights.
void copy_without_weights(const Checkpoint& component, const std::filesystem::path& to);

uint64_t copied_bytes(const Checkpoint& from, const std::string& component);  // the size of its copies

// The files that hold a transformers folder's weights, in order of their names; and a copy of all else that belongs to
// the model, with this chat template, if given, and a config that tells of `dtype`, if given, last. Where the head was
// the embeddings' table and has a tensor of its own in the file `new_head` of `to`, index and config tell of that.
std::vector<std::filesystem::path> weight_files(const Checkpoint& folder);
void copy_model_files(const Checkpoint& from, const std::filesystem::path& to, std::optional<DType> dtype = {},
                      const std::optional<std::string>& chat_template = {},
                      const std::optional<std::string>& new_head = {});

// Writes a transformers folder's chat template: chat_template.jinja, and the same text in the tokenizer_config.json
// that is there, if it has one, since some programs read that first.
void put_chat_template(const std::filesystem::path& folder, const std::string& jinja);

// Makes `to` the transformers folder `from` with other weights, in the file that `write` is given or its shards, and
// with this text as its config.
void write_language_model(const Checkpoint& from, const std::filesystem::path& to, const std::string& config,
                          const std::function<void(const std::filesystem::path& file)>& write,
                          const std::optional<std::string>& chat_template = {});
// The same with these weights in `dtype`, which its config names.
void write_language_model(const Checkpoint& from, const std::filesystem::path& to, const Weights& weights, DType dtype,
                          const std::optional<std::string>& chat_template = {});

}  // namespace wick
