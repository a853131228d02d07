#include "wick/nn/adapter_types.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "wick/core/error.h"
#include "wick/io/numbers.h"
#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/bitsandbytes.h"
#include "wick/nn/fp8.h"

namespace wick {
namespace {

// Factors that are one number of any type: IA3's side, and OneTrainer's mark of an OFT.
constexpr std::string_view kFlags[] = {".on_input", ".scaled_oft"};

bool is_flag(std::string_view key) {
  return std::ranges::any_of(kFlags, [&](std::string_view flag) { return key.ends_with(flag); });
}

}  // namespace

void check_adapter_types(const SafetensorsFile& file) {
  const auto has = [&](const std::string& other) { return file.has(other); };
  for (const auto& [key, info] : file.tensors()) {
    const auto refuse = [&file, &name = key, &type = info.dtype_name](std::string_view expected) {
      fail(
          "{}: {} is {}; expected {}: the file is damaged, or quantised in a way that Wick does not read; use the "
          "adapter as it was trained",
          file.path().string(), quote(name), type, expected);
    };
    const auto parsed = parse_adapter_key(key, has);
    const bool is_number = parsed && !parsed->algorithm && parsed->name != "magnitude",
               is_factor =
                   is_bundled_embedding(key) || !module_of_base(key).empty() || (parsed && !is_number && !is_flag(key));
    if (is_factor && !is_float_type(info.dtype_name)) refuse("floats, F32, F16 or BF16");
    if (is_number && info.dtype_name == "BOOL") refuse("a number");
    check(parsed || !(goes_with_fp8(key) || goes_with_bitsandbytes(key)),
          "{}: {} is a scale of quantised factors, which Wick does not read; use the adapter as it was trained",
          file.path().string(), quote(key));
  }
}

}  // namespace wick
