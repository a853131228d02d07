// Texts and their ids as files, for comparing tokenizers: JSON lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace wick {

using TextToIds = std::function<std::vector<int64_t>(const std::string&)>;

// Reads a JSON string from each line of `in` and writes its ids, a JSON list, to the same line of `out`. Throws Error
// that names the line.
void encode_lines(const std::filesystem::path& in, const std::filesystem::path& out, const TextToIds& encode);

}  // namespace wick
