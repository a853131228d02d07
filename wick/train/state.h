// What a run needs to go on with the same bits: one safetensors file, replaced as a whole.
//
// Tensors are param.NAME, m.NAME, v.NAME and, with --ema, ema.NAME, and the optimizer's scalars, all f32. Everything
// else is metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "wick/io/safetensors.h"
#include "wick/train/optimizer.h"

namespace wick {

struct TrainState {
  int64_t step = 0;                     // optimizer steps done
  int64_t epoch = 0, batch = 0;         // where in the shuffled data: `batch` batches of this epoch are used up
  std::map<std::string, uint64_t> rng;  // position of each stream
  std::map<std::string, std::string> fingerprint;  // settings and hashes that a run continuing it must share
};

void save_state(const std::filesystem::path& file, const TrainState& state, const AdamW& optimizer);

class SavedState {
 public:
  static SavedState open(const std::filesystem::path& file);
  const TrainState& state() const { return state_; }
  // Throws Error naming the first setting that differs, with both values.
  void check_same_run(const std::map<std::string, std::string>& fingerprint) const;
  // Overwrites the parameters, the optimizer's moments and the average with what was saved.
  void restore(AdamW& optimizer) const;

 private:
  SavedState(SafetensorsFile file, TrainState state);
  void read_into(const Tensor& target, const std::string& name) const;

  SafetensorsFile file_;
  TrainState state_;
};

}  // namespace wick
