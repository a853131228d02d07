// The parts that all families share: a VAE, a denoiser, and text encoders that come and go.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "wick/models/modulation.h"
#include "wick/models/vae.h"
#include "wick/pipelines/diffusion.h"

namespace wick {

// Is it a folder of a pipeline whose class is called `family` and something, "FluxPipeline"?
bool names_pipeline(const Checkpoint& model, std::string_view family);

// The stored tensors of which `build` asks for matrices with names that `is_in_blocks` knows. `names` brings stored
// tensors to the names that are asked for.
std::set<std::string> matrices_in_blocks(const Checkpoint& component, TensorSource (*names)(const TensorSource&),
                                         bool (*is_in_blocks)(const std::string&),
                                         const std::function<void(const Scope&)>& build);

class LatentDiffusion : public Diffusion {
 public:
  std::string denoiser() const override { return denoiser_; }
  TensorSource source(const std::string& component) const override { return model_.component(component).source(); }
  void load(const DiffusionOptions& options, const DiffusionParts& parts) final;
  void drop_encoders() final;
  const Weights& denoiser_weights() const override { return *denoiser_weights_; }
  Memory& memory() const override { return backend().memory(); }
  LatentPosterior encode(const Tensor& pictures) const override;
  Tensor decode(const Tensor& latents) const override;

 protected:
  LatentDiffusion(const Checkpoint& model, std::string denoiser, const VaeConfig& vae)
      : model_(model), denoiser_(std::move(denoiser)), vae_(vae) {}

  // A family's own: text encoders, those that are not trained go again; and the denoiser.
  virtual void load_text_encoders() = 0;
  virtual void drop_text_encoders() = 0;
  virtual void load_denoiser(const Scope& scope) = 0;
  virtual void drop_denoiser() = 0;
  // Is it a matrix of the blocks that repeat? Embedders, modulations and last layers are none of those: they are small,
  // or not resident, and what they lose the whole picture loses.
  virtual bool is_in_blocks(const std::string& tensor) const = 0;

  // Throws Error where what a component makes, "T5's states", is not as wide as the denoiser wants.
  void check_width(const std::string& component, const char* what, int64_t here, int64_t wanted) const;
  // A transformer of a rectified flow. On a device its modulations are made ahead, which saves memory there, unless
  // the inputs of their vector are trained.
  FlowTransformerOptions flow_options(bool vector_is_trained) const;
  Scope scope(const std::string& component) const;  // of a frozen component; whoever takes it reads what it defers
  // A sentence for users where the denoiser's files hold tensors that `build`, which makes it, does not ask for.
  // `names` brings stored tensors to the names that are asked for; `elsewhere` are stored ones that others read.
  std::vector<std::string> remarks_on_tensors(TensorSource (*names)(const TensorSource&),
                                              const std::function<void(const Scope&)>& build,
                                              std::set<std::string> elsewhere = {}) const;
  bool trains(const std::string& component) const {
    return options_.adapter && options_.adapter->covers(component + ".");
  }
  Backend& backend() const { return options_.backend ? *options_.backend : cpu_backend(); }
  const Checkpoint& model() const { return model_; }
  const DiffusionOptions& options() const { return options_; }
  const VaeConfig& vae() const { return vae_; }

 private:
  WeightsOptions weights_options(DType dtype) const;
  Weights weights(const std::string& component, const WeightsOptions& options) const;
  Weights open_denoiser();
  void check_kept() const;  // throws Error where a pattern of Quantization::keep, or quantising, is without effect

  Checkpoint model_;
  std::string denoiser_;
  VaeConfig vae_;
  DiffusionOptions options_;
  std::optional<VaeEncoder> vae_encoder_;
  std::optional<VaeDecoder> vae_decoder_;
  std::optional<Weights> denoiser_weights_;
  std::vector<bool> kept_by_;  // by pattern of Quantization::keep, whether a matrix fits
};

}  // namespace wick
