// The alphabet of byte-level BPE (GPT-2): a printable character for every byte, so that vocabularies are plain text.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace wick {

// Each byte's character in UTF-8: itself if Latin-1 prints it, else the next unused character from U+0100 on.
const std::array<std::string, 256>& byte_characters();

// The bytes that a token of this alphabet stands for; nullopt if it has other characters.
std::optional<std::string> bytes_of_characters(std::string_view token);

}  // namespace wick
