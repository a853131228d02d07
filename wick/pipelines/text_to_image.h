// Text to image with a latent diffusion model and classifier-free guidance (Ho and Salimans, 2022).
#pragma once

#include <compare>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wick/io/image.h"
#include "wick/ops/recorder.h"
#include "wick/pipelines/diffusion.h"

namespace wick {

// Adds scale * (prediction - prediction without these layers) in steps i of N with start N < i < stop N (Stability AI's
// sd3.5, sd3_impls.py, SkipLayerCFGDenoiser), whatever the scale of classifier-free guidance is: as ComfyUI does
// (comfy_extras/nodes_sd3.py). diffusers leaves it out where that scale is 1 or less.
struct SkipLayerGuidance {
  float scale = 0;  // 0: off
  std::vector<int64_t> layers = {7, 8, 9};
  double start = 0.01, stop = 0.2;

  bool applies(int64_t step, int64_t steps) const {
    return scale != 0 && start * double(steps) < double(step) && double(step) < stop * double(steps);
  }
};

struct ImageRequest {
  std::string prompt = {};
  std::optional<std::string> negative = {};  // none is not the same as empty: see Diffusion::negative
  int64_t width = 1024, height = 1024;
  float cfg = 5;  // scale of classifier-free guidance; 1 is without it
  // Share of the guided prediction that is brought back to the deviation of the one without guidance (Lin et al., 2023,
  // section 3.4): against pictures that guidance overexposes.
  float cfg_rescale = 0;
  float guidance = 1;  // for a model that is told it
  SkipLayerGuidance skip = {};
  SamplerOptions sampling = {};
  uint64_t seed = 0;
  size_t adapters = 0;             // the set of adapters that is in use (Adapter::use)
  Tensor start = {};               // noise [1, h, w, C] of unit variance to begin with, in place of the seed's
  std::vector<Tensor> draws = {};  // such noise for the samplers that draw more, in place of the seed's
  // Latents [1, h, w, C] of a picture to begin with and noise, in place of noise alone (Meng et al., "SDEdit", 2022).
  // Then sampling.skipped says how much of it is left.
  Tensor picture = {};
  // Pixels: a larger picture is decoded in overlapping squares of this side, one after the other, which takes less
  // memory and differs a little from the picture decoded whole. 0: none is too large.
  int64_t tile = 0;
};

// In two steps, with all that decides what a step takes and computes.
ImageRequest shortened(ImageRequest request);

class TextToImage {
 public:
  // The model has kDrawingParts. It is borrowed, and may go on training; its denoiser stays loaded.
  explicit TextToImage(const Diffusion& model) : model_(model) {}
  using Batch = std::vector<ImageRequest>;
  // Where a batch of at most `size` requests ends, which have one set of adapters.
  static Batch::const_iterator end_of_batch(Batch::const_iterator first, Batch::const_iterator last, int64_t size);
  // Loads kDrawingParts of a model of which no part is loaded, to draw these requests: its text encoders go again
  // before its denoiser comes, so that never both need room. While its weights are read, the first `at_once` of the
  // requests are rehearsed, so that a device's kernels get loaded.
  static TextToImage load(Diffusion& model, DiffusionOptions options, const Batch& requests, int64_t at_once = 1);

  // Called when the device has come to the end of a step, which may be of several evaluations of the model.
  using OnStep = std::function<void(int64_t step)>;

  // Throws Error if no picture can have that side. Cheap, to be asked before models are loaded.
  static void check_side(const char* name, int64_t pixels, const LatentSpace& space);

  // Pictures that differ in prompt, negative, seed, start and draws alone; in all else the first request holds. Sets of
  // adapters are those of load().
  std::vector<Image> operator()(const Batch& batch, const OnStep& on_step = {});
  Image operator()(const ImageRequest& request, const OnStep& on_step = {});

  // A picture that the device is still decoding.
  class Pending {
   public:
    Pending(const Tensor& pixels);  // [1, H, W, 3]
    Image wait() const;

   private:
    int64_t height_, width_;
    std::unique_ptr<Readback> values_;
  };
  // The same, but returns when the steps are done and decoding is enqueued.
  std::vector<Pending> draw(const Batch& batch, const OnStep& on_step = {});

  // What the memory that a batch takes depends on, beside its first request: the shapes of all that the model is told.
  std::string shapes(const Batch& batch) const;

  // A prompt, or the text that guidance leads away from; and texts with all that encoders made of them.
  struct Text {
    bool is_negative;
    std::optional<std::string> text;
    size_t adapters = 0;  // their set, where some of them are on text encoders
    auto operator<=>(const Text&) const = default;
  };
  using Encoded = std::map<Text, NamedTensors>;
  // These texts are not encoded again: their encoders may be gone.
  void remember(const Encoded& texts) { encoded_ = texts; }

  // The stages: noise [B, h, w, C] of unit variance -> latents -> pictures [B, H, W, 3] in about [-1, 1]. `tile` is
  // that of ImageRequest.
  Tensor noise(const Batch& batch) const;
  Tensor denoise(const Batch& batch, const Tensor& noise, const OnStep& on_step = {}) {
    return denoise(batch, noise, on_step, std::numeric_limits<int64_t>::max());
  }
  Tensor decode(const Tensor& latents, int64_t tile = 0) const;

 private:
  // Where the steps of a batch with some shapes read and write, at the same addresses in all batches.
  struct Canvas {
    NamedTensors parts;
    std::vector<Tensor> kept;  // latents of the sampler
    Recorder recorder;
  };

  void rehearse(const Batch& batch);
  Tensor denoise(const Batch& batch, const Tensor& noise, const OnStep& on_step, int64_t most_steps);
  void encode(const Batch& requests);  // and remembers what becomes of their texts
  NamedTensors encoded(const Text& text) const;
  Text negative_of(const ImageRequest& request) const { return {true, request.negative, text_set(request)}; }
  Text prompt_of(const ImageRequest& request) const { return {false, request.prompt, text_set(request)}; }
  size_t text_set(const ImageRequest& request) const { return adapts_text_ ? request.adapters : 0; }
  void use_adapters(const ImageRequest& request) const;
  Tensor fresh_noise(const Batch& batch, size_t index) const;
  NamedTensors conditioning(const Batch& batch) const;
  const NamedTensors& parts_ahead(const Batch& batch, const Sampler& sampler, const NamedTensors& parts);
  Canvas& canvas(const NamedTensors& parts, const Shape& latents, size_t kept);
  NamedTensors of_step(const ImageRequest& request, const Sampler& sampler, int64_t i, int64_t rows,
                       const NamedTensors& ahead) const;
  Tensor predict(const ImageRequest& request, const Tensor& x, const NamedTensors& parts, bool skips) const;

  const Diffusion& model_;
  Adapter* adapter_ = nullptr;
  bool adapts_text_ = false;
  Encoded encoded_;
  std::map<std::string, Canvas> canvases_;
  std::map<std::string, NamedTensors> ahead_;  // on the host, by texts and timesteps
};

// [1, h, w, C], of a picture of the request's size.
Shape latent_shape(const ImageRequest& request, const LatentSpace& space);

}  // namespace wick
