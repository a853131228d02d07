// Amounts of memory as users write them.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace wick {

// "12GiB", "11.5 GiB", "500 MB": a number with KiB, MiB, GiB (of 1024) or KB, MB, GB (of 1000); none for anything else.
std::optional<size_t> parse_byte_size(std::string_view text);

}  // namespace wick
