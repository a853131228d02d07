#include "wick/models/supported.h"

#include "wick/core/error.h"
#include "wick/io/quote.h"

namespace wick {

void only(const Config& config, const std::string& key, const char* value, std::optional<const char*> absent) {
  const std::string found = config.text_or(key, absent.value_or(value));
  check(found == value, "{}: {} is {}; Wick supports \"{}\" only", config.source(), key, quote(found), value);
}

void only(const Config& config, const std::string& key, bool value, std::optional<bool> absent) {
  const bool found = config.boolean_or(key, absent.value_or(value));
  check(found == value, "{}: {} is {}; Wick supports {} only", config.source(), key, found, value);
}

void only(const Config& config, const std::string& key, double value, std::optional<double> absent) {
  const double found = config.number_or(key, absent.value_or(value));
  check(found == value, "{}: {} is {}; Wick supports {} only", config.source(), key, found, value);
}

void only_absent(const Config& config, const std::string& key) {
  check(!config.has(key), "{}: {} is set; Wick supports models without it", config.source(), key);
}

}  // namespace wick
