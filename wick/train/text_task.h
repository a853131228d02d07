// A language model, or a LoRA of one, on text.
#pragma once

#include <memory>

#include "wick/train/task.h"
#include "wick/train/text_batch.h"

namespace wick {

// What text a run sees, and how it is laid out.
struct TextData {
  const TextDataset* train;       // null in an outline
  const TextDataset* validation;  // null without --val
  int64_t row_length;             // tokens
};

std::unique_ptr<Task> make_text_task(const TrainConfig& config, const std::filesystem::path& model, Backend& backend,
                                     const TextData& data);
std::unique_ptr<Task> outline_text_task(const TrainConfig& config, const std::filesystem::path& model, Backend& backend,
                                        int64_t row_length);

// Tokens of a row at the most: --sequence-length, which the model's positions limit.
int64_t sequence_length(const TrainConfig& config, const LlamaConfig& model);

// How the frozen model is kept: as the settings say, or, of a GGUF file, as that has it.
std::optional<DType> text_dtype(const TrainConfig& config, const std::filesystem::path& model);
// The same for a plan: of what a file mixes, the type that most of its bytes have.
DType planned_dtype(const TrainConfig& config, const std::filesystem::path& model);

}  // namespace wick
