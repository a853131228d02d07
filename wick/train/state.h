// The state with which a run resumes with the same bits: one safetensors file, and a folder that keeps the newest two.
//
// Its tensors are Optimizer::states(), those of all ranks. Everything else is metadata, a hash of the whole content
// among it: a run does not go on from a state in which a bit flipped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "wick/io/safetensors.h"
#include "wick/ranks/ranks.h"
#include "wick/train/optimizer.h"

namespace wick {

struct TrainState {
  int64_t step = 0;              // optimizer steps done
  int64_t epoch = 0, batch = 0;  // where in the shuffled data: `batch` steps of this epoch are used up
  // Samples used up. In states of the versions before there are none: then `batch` counts batches, and each random
  // stream has a position (StepOrder::is_older).
  std::optional<uint64_t> sample = {};
  std::map<std::string, uint64_t> rng;  // position of each stream, in such a state
  int64_t batches = 1;                  // of a step, on all ranks together: the run keeps it, on however many
  int64_t ranks = 1;                    // that made the last step
  bool finished = false;                // the run's result is written
  std::map<std::string, std::string> fingerprint;  // settings and hashes that a run continuing it must share
  std::map<std::string, std::string> settings;     // settings that may change, kept to name their old values
};

// On rank 0 the states that other ranks keep, on the host, by name; on those nothing. All ranks call it. Nothing is
// left to wait for then, whatever becomes of rank 0's file.
std::map<std::string, Tensor> fetch_states(const Optimizer& optimizer, Ranks& ranks);

// `elsewhere`: what other ranks keep of the states.
void save_state(const std::filesystem::path& file, const TrainState& state, const Optimizer& optimizer,
                const std::map<std::string, Tensor>& elsewhere = {});

class SavedState {
 public:
  // Throws Error where the file is damaged: its content has another hash than it says, or its numbers make no sense.
  // Files of the version before have no hash, and `has_hash()` is false.
  static SavedState open(const std::filesystem::path& file);
  const TrainState& state() const { return state_; }
  const std::filesystem::path& path() const { return file_.path(); }
  bool has_hash() const;
  // That of the newest file there that has one; its tensors are not read, nor its hash compared.
  static std::optional<TrainState> glimpse(const std::filesystem::path& folder);
  // Throws Error naming the first setting that differs, with both values.
  // What the state does not tell, since it is older than a setting, was that setting's default.
  void check_same_run(const std::map<std::string, std::string>& fingerprint,
                      const std::map<std::string, std::string>& defaults) const;
  // The saved value of that name, on the host. Throws Error where it is missing or has another shape or dtype.
  Tensor load(const Optimizer::State& state) const;

 private:
  SavedState(SafetensorsFile file, TrainState state);

  SafetensorsFile file_;
  TrainState state_;
};

// Overwrites the parameters and the optimizer's states on all ranks, which call it together, with what rank 0 alone has
// as `saved`.
void restore(Optimizer& optimizer, const SavedState* saved, Ranks& ranks);

// The states of a run: state-000120.safetensors, by their steps. The version before had one, state.safetensors.
class StateFolder {
 public:
  explicit StateFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // The newest that is whole; `say` is told of damaged ones that are passed over. Throws Error where none is whole.
  std::optional<SavedState> open_newest(const std::function<void(const std::string&)>& say);
  // Writes one, and removes all but it and the one before it that was opened or saved.
  void save(const TrainState& state, const Optimizer& optimizer, const std::map<std::string, Tensor>& elsewhere = {});
  std::optional<int64_t> newest_step() const;  // of the state last opened or saved

 private:
  std::filesystem::path folder_;
  std::map<int64_t, std::filesystem::path> kept_;  // by step
};

// The newest first, by their names.
std::vector<std::filesystem::path> state_files(const std::filesystem::path& folder);

}  // namespace wick
