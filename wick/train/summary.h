// What a run says when it has ended: ten lines at the most.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "wick/nn/checkpoint.h"
#include "wick/train/config.h"
#include "wick/train/run_log.h"

namespace wick {

struct RunSummary {
  std::string trained;           // "A LoRA of rank 32 on 722 modules, 42.6 M parameters"
  std::string data;              // "12 pictures in 3 buckets"
  std::string steps;             // "120 steps of 4 pictures"
  std::string speed;             // "1.32 steps/s"
  double seconds = 0;            // of all steps
  std::string memory;            // "cuda:0: 18.4 GiB at the peak"
  std::filesystem::path result;  // a file, or a folder
  int64_t saved_before = 0;      // results beside it
  std::string prompt;            // of a preview; empty without previews
};

std::vector<std::string> summary_of(const RunSummary& run, const TrainConfig& config, ModelKind kind,
                                    std::span<const StepRecord> records);

// The command that draws or talks with the result.
std::string command_for_result(const TrainConfig& config, ModelKind kind, const std::filesystem::path& result,
                               const std::string& prompt = {});

// As a shell reads it: in single quotes where it needs some.
std::string shell_word(const std::string& word);

}  // namespace wick
