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

void check_quantization(const Config& config) {
  const std::string key = "quantization_config";
  if (!config.has(key)) return;
  const Config q = config.section(key);
  const std::string method = q.text_or("quant_method", "");
  std::string found = method.empty() ? "no quant_method" : quote(method);
  if (method == "bitsandbytes") {
    if (q.boolean_or("load_in_8bit", false)) return;
    const std::string type = q.text_or("bnb_4bit_quant_type", "fp4");  // transformers' default
    if (q.boolean_or("load_in_4bit", false) && (type == "nf4" || type == "fp4")) return;
    found += " with " + quote(type);
  }
  if (method == "compressed-tensors") {
    const std::string format = q.text_or("format", "dense");  // its own default
    if (format == "float-quantized") return;
    found += " with " + quote(format);
  }
  fail(
      "{}: {} names {}; Wick reads bitsandbytes' nf4, fp4 and int8, and compressed-tensors' float-quantized: use a "
      "model of those, or one that is not quantised",
      config.source(), key, found);
}

}  // namespace wick
