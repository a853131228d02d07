// Rows of documents as a language model takes them in, and its loss on them.
#pragma once

#include <cstdint>
#include <vector>

#include "wick/models/llama.h"
#include "wick/train/packing.h"
#include "wick/train/text_dataset.h"

namespace wick {

// Documents do not see each other, positions restart with each, and what is left of a row is padding that does not
// count.
struct PackedBatch {
  Tensor ids;  // i64 [B, T]
  TokenPlan plan;
  TokenTargets targets;  // each id that counts, at the token before it
};

// A row is row_length tokens wide, or as wide as the longest one where that is less; what counts weighs `weight`.
PackedBatch pack(const std::vector<TextDocument>& documents, const std::vector<PackedRow>& rows, int64_t row_length,
                 float weight, const LlamaConfig& config, Memory& memory);

// How many tokens of the rows count in the loss.
int64_t counted(const std::vector<TextDocument>& documents, const std::vector<PackedRow>& rows);

// The sum of the cross-entropies of all that counts, in nats, in rows of row_length tokens and batches of so many.
double total_loss(const Llama& model, const std::vector<TextDocument>& documents, int64_t row_length,
                  int64_t batch_size);

// A document of any length as pieces of at most `length` tokens, each `stride` tokens after the one before, which is
// less: all that counts does in the first piece that has it and something before it.
std::vector<TextDocument> windows(const TextDocument& document, int64_t length, int64_t stride);

}  // namespace wick
