// A LoRA of a language model on text.
#pragma once

#include <memory>

#include "wick/models/llama.h"
#include "wick/train/packing.h"
#include "wick/train/task.h"
#include "wick/train/text_dataset.h"

namespace wick {

// What text a run sees, and how it is laid out.
struct TextData {
  const TextDataset* train;       // null in an outline
  const TextDataset* validation;  // null without --val
  int64_t row_length;             // tokens
};

// Rows of documents as a model takes them in. Documents do not see each other, positions restart with each, and what
// is left of a row is padding that does not count.
struct PackedBatch {
  Tensor ids;  // i64 [B, T]
  TokenPlan plan;
  TokenTargets targets;  // each id that counts, at the token before it
};

// A row is row_length tokens wide, or as wide as the longest one where that is 0; what counts weighs `weight`.
PackedBatch pack(const std::vector<TextDocument>& documents, const std::vector<PackedRow>& rows, int64_t row_length,
                 float weight, const LlamaConfig& config, Memory& memory);

std::unique_ptr<Task> make_text_task(const TrainConfig& config, const std::filesystem::path& model, Backend& backend,
                                     const TextData& data);
std::unique_ptr<Task> outline_text_task(const TrainConfig& config, const std::filesystem::path& model, Backend& backend,
                                        int64_t row_length);

// Tokens of a row at the most: --sequence-length, which the model's positions limit.
int64_t sequence_length(const TrainConfig& config, const LlamaConfig& model);

// How the frozen model is kept: as the settings say, or, of a GGUF file, as that has it.
std::optional<DType> text_dtype(const TrainConfig& config, const std::filesystem::path& model);

}  // namespace wick
