// A tokenizer in a GGUF file: the keys `tokenizer.ggml.X`, and those of chat templates (ggml, docs/gguf.md, and
// llama.cpp's gguf-py).
#pragma once

#include "wick/io/gguf.h"
#include "wick/text/tokenizer.h"

namespace wick {

TokenizerArrays tokenizer_arrays(const GgufMetadata& metadata);  // throws Error if there is none
GgufMetadata::Entries tokenizer_entries(const TokenizerArrays& arrays);

// Instead of the default one there.
void put_chat_template(GgufMetadata::Entries& entries, const std::string& jinja);

}  // namespace wick
