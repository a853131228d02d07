// Config values that change a network's computation, and of which Wick knows one.
#pragma once

#include <string>

#include "wick/io/config.h"

namespace wick {

// Throws Error naming file and key for any other value. Absent keys and nulls count as `absent`.
void only(const Config& config, const std::string& key, const char* value, const char* absent);
void only(const Config& config, const std::string& key, bool value, bool absent);
void only(const Config& config, const std::string& key, double value, double absent);
inline void only(const Config& config, const std::string& key, const char* value) { only(config, key, value, value); }
inline void only(const Config& config, const std::string& key, bool value) { only(config, key, value, value); }
inline void only(const Config& config, const std::string& key, double value) { only(config, key, value, value); }
void only_absent(const Config& config, const std::string& key);

}  // namespace wick
