// A tokenizer in a GGUF file: the keys `tokenizer.ggml.X` and `tokenizer.chat_template` (ggml, docs/gguf.md).
#pragma once

#include "wick/io/gguf.h"
#include "wick/text/tokenizer.h"

namespace wick {

TokenizerArrays tokenizer_arrays(const GgufMetadata& metadata);  // throws Error if there is none
GgufMetadata::Entries tokenizer_entries(const TokenizerArrays& arrays);

}  // namespace wick
