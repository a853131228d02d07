// Folders of models with other weights in them, diffusers' and transformers'.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "wick/nn/checkpoint.h"

namespace wick {

// The files of diffusers' and of transformers' folders that are written last: a folder that has its own is whole.
inline constexpr const char *kDiffusersLast = kPipelineConfig, *kTransformersLast = kNetworkConfig;

// Throws Error if `to` is the folder `from`, which would be lost: the functions below do, and a run before its first
// step.
void check_elsewhere(const std::filesystem::path& from, const std::filesystem::path& to);

// Makes `to` the model `from` with other weights for `component`: copies all other files of the model, lets
// `write` put the component's weight file (and config, if that changes) into the folder it is given.
void write_model_folder(const Checkpoint& from, const std::filesystem::path& to, const std::string& component,
                        const std::function<void(const std::filesystem::path& folder)>& write);

uint64_t copied_bytes(const Checkpoint& from, const std::string& component);  // the size of its copies

// The files that hold a transformers folder's weights, in order of their names; and a copy of all else that belongs to
// the model, with a config that tells of `dtype`, if given, last.
std::vector<std::filesystem::path> weight_files(const Checkpoint& folder);
void copy_model_files(const Checkpoint& from, const std::filesystem::path& to, std::optional<DType> dtype = {});

// Makes `to` the transformers folder `from` with other weights, in the file that `write` is given or its shards, and
// with this text as its config.
void write_language_model(const Checkpoint& from, const std::filesystem::path& to, const std::string& config,
                          const std::function<void(const std::filesystem::path& file)>& write);
// The same with these weights in `dtype`, which its config names.
void write_language_model(const Checkpoint& from, const std::filesystem::path& to, const Weights& weights, DType dtype);

}  // namespace wick
