// The trained part of a run: a LoRA, or every weight of a model. It knows nothing of the objective; how a family of
// models names and writes its results is handed in by the task that owns it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "wick/nn/adapter.h"
#include "wick/nn/weights.h"
#include "wick/train/config.h"
#include "wick/train/train_rng.h"

namespace wick {

class Trained {
 public:
  // A LoRA as the settings have it, on the modules that --targets match, or `default_targets` where none are given; or
  // the one of --from.
  // DoRA's magnitudes are of inputs or of outputs (nn/dora.h).
  Trained(const TrainConfig& config, ModuleNames names, std::vector<std::string> default_targets,
          bool magnitudes_of_inputs);
  // Every weight of a model, in words ("The whole UNet"). set_weights() follows once the model is loaded.
  Trained(const TrainConfig& config, std::string whole);

  // A LoRA's: the model is loaded with it. Null for whole weights: the model is loaded with trainable ones.
  Adapter* adapter() const { return adapter_.get(); }
  void set_weights(Weights weights) { weights_ = std::move(weights); }

  std::vector<Parameter> parameters() const;
  // Sets the dropout's masks of a batch's samples, of which the first has this number; in older runs the next mask.
  void begin_batch(TrainRng& rng, std::optional<uint64_t> number = {}, int64_t samples = 1) const;
  // Behind an update: brings the parameters within their limits. False where they have none, and nothing changed.
  bool limit() const;
  void pause(bool paused) const;  // nothing is dropped out while true

  // Hands a LoRA's tensors, as Adapter::tensors() gives them in `dtype`, or the weights to the function that writes
  // them, and returns the path that it wrote.
  using WriteLora = std::function<std::filesystem::path(const std::map<std::string, Tensor>& tensors)>;
  using WriteWeights = std::function<std::filesystem::path(const Weights& weights)>;
  std::filesystem::path save(DType dtype, const WriteLora& write_lora, const WriteWeights& write_weights) const;

  std::string describe() const;  // "A LoRA of rank 32 on 722 modules, 42.60 M parameters"

 private:
  std::string name_;                  // "The whole UNet"
  ByPattern<double> rate_;            // Parameter::rate
  std::unique_ptr<Adapter> adapter_;  // models keep its address
  std::optional<Weights> weights_;
};

// While one lives, nothing is dropped out: for validation and previews.
class PausedDropout {
 public:
  explicit PausedDropout(const Trained& trained) : trained_(trained) { trained_.pause(true); }
  ~PausedDropout() { trained_.pause(false); }
  PausedDropout(const PausedDropout&) = delete;
  PausedDropout& operator=(const PausedDropout&) = delete;

 private:
  const Trained& trained_;
};

}  // namespace wick
