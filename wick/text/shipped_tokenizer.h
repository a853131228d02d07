// The tokenizers that come with set-up (scripts/setup-tokenizers), for checkpoints of a single file, which have none.
#pragma once

#include <filesystem>
#include <string>

namespace wick {

// The folder of "clip" (CLIP-L's), "clip_g" (the same vocabulary, padded with "!" as OpenCLIP bigG's is) or "t5":
// in $WICK_TOKENIZERS if that is set, else in share/wick/tokenizers beside the program's folder or further up (an
// installation, a build tree). Throws Error that says where it looked.
std::filesystem::path shipped_tokenizer(const std::string& name);

}  // namespace wick
