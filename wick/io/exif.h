// EXIF blocks: a TIFF header and directories of tagged values (CIPA DC-008). Of them all Wick knows the orientation,
// and two texts: the UserComment (0x9286), where A1111's web UI keeps a picture's `parameters`, and the MakerNote
// (0x927C), where Wick keeps its own settings.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace wick {

// The orientation that a block asks for, 1 to 8; 1 where it says nothing sound.
int exif_orientation(std::span<const uint8_t> tiff);

// The texts of a block, in UTF-8, by the names that they have in image.h; those that are not sound are left out.
std::map<std::string, std::string> exif_texts(std::span<const uint8_t> tiff);

// The block of these texts. It has room for the keywords `parameters` and `wick` alone.
std::string exif_block_of(const std::map<std::string, std::string>& texts);

}  // namespace wick
