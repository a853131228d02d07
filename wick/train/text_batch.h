// Rows of documents as input of a language model, and its loss on them.
#pragma once

#include <cstdint>
#include <vector>

#include "wick/models/llama.h"
#include "wick/train/batches.h"
#include "wick/train/text_dataset.h"

namespace wick {

// Documents do not see each other, positions restart with each, and the rest of a row is padding that does not count.
struct PackedBatch {
  Tensor ids;  // i64 [B, T]
  TokenPlan plan;
  TokenTargets targets;  // each counted id, at the token before it
};

// A row is row_length tokens wide, or the longest row's width if that is more; each counted token weighs `weight`.
PackedBatch pack(const std::vector<TextDocument>& documents, const std::vector<PackedRow>& rows, int64_t row_length,
                 float weight, const LlamaConfig& config, Memory& memory);

// The number of tokens of the rows that count in the loss.
int64_t counted(const std::vector<TextDocument>& documents, const std::vector<PackedRow>& rows);

// The summed cross-entropy of all counted tokens, in nats, in rows of row_length tokens, batch_size rows at a time.
double total_loss(const Llama& model, const std::vector<TextDocument>& documents, int64_t row_length,
                  int64_t batch_size);
// The same of each batch, so that several devices may share them: this one's are `first` and each `every`-th behind it,
// and the others' are 0.
std::vector<double> losses_of_batches(const Llama& model, const std::vector<TextDocument>& documents,
                                      int64_t row_length, int64_t batch_size, size_t first = 0, size_t every = 1);

// Splits a document into windows of at most `length` tokens, `stride` < length apart. A counted token counts once: in
// the first window in which a token precedes it.
std::vector<TextDocument> windows(const TextDocument& document, int64_t length, int64_t stride);

}  // namespace wick
