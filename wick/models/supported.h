// Config values that change a network's computation, and of which Wick knows one.
#pragma once

#include <optional>
#include <string>

#include "wick/io/config.h"

namespace wick {

// Throws Error naming file and key for any other value. Absent keys and nulls count as `absent`, which is `value`
// unless given.
void only(const Config& config, const std::string& key, const char* value, std::optional<const char*> absent = {});
void only(const Config& config, const std::string& key, bool value, std::optional<bool> absent = {});
void only(const Config& config, const std::string& key, double value, std::optional<double> absent = {});
void only_absent(const Config& config, const std::string& key);
// Throws Error for weights that another program quantised in a way that Wick does not read (quantization_config of
// transformers and diffusers). bitsandbytes' nf4, fp4 and int8 are read (nn/bitsandbytes.h), and compressed-tensors'
// fp8 (nn/fp8.h).
void check_quantization(const Config& config);

}  // namespace wick
