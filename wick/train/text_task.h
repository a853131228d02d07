// A language model, or a LoRA of one, on text.
#pragma once

#include <memory>

#include "wick/train/task.h"
#include "wick/train/text_batch.h"

namespace wick {

// The text of a run, and its layout.
struct TextData {
  const TextDataset* train = nullptr;       // null in an outline
  const TextDataset* validation = nullptr;  // null without --val
  int64_t row_length;                       // tokens
  StepOrder order = {};
  std::string chat_template = {};  // that results keep; empty without conversations, and where the model has two
};

std::unique_ptr<Task> make_text_task(const TrainConfig& config, const std::filesystem::path& model, Backend& backend,
                                     const TextData& data, const BlockSchedule& block_schedule);

// Tokens of a row at the most: --sequence-length, which the model's positions limit.
int64_t sequence_length(const TrainConfig& config, const LlamaConfig& model);

// The dtype of the frozen model for a plan: in a file of mixed types, the type of most of its bytes.
DType planned_dtype(const TrainConfig& config, const std::filesystem::path& model);

}  // namespace wick
