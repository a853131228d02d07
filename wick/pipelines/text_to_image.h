// Text to image with SDXL (Podell et al., 2023) and classifier-free guidance (Ho and Salimans, 2022).
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "wick/io/image.h"
#include "wick/models/sdxl.h"
#include "wick/pipelines/sampler.h"
#include "wick/text/clip_tokenizer.h"

namespace wick {

struct ImageRequest {
  std::string prompt;
  std::optional<std::string> negative;  // none is not the same as empty: see model_index.json
  int64_t width = 1024, height = 1024;
  int64_t steps = 30;
  float cfg = 5;  // guidance scale; 1 is without guidance
  uint64_t seed = 0;
  SamplerKind sampler = SamplerKind::euler;
};

class TextToImage {
 public:
  // `folder` is the diffusers folder that `sdxl` came from. The model is borrowed, and may go on training.
  TextToImage(const Sdxl& sdxl, const std::filesystem::path& folder);

  // Throws Error if no picture can have that side. Cheap, to be asked before models are loaded.
  static void check_side(const char* name, int64_t pixels, const VaeConfig& vae);
  // The side of the square pictures that the model was made for.
  static int64_t native_size(const std::filesystem::path& folder);

  Image operator()(const ImageRequest& request, const std::function<void(int64_t step)>& on_step = {}) const;

  // Its stages: noise [1, h, w, C] of unit variance -> latents -> picture [1, H, W, 3] in about [-1, 1].
  Tensor noise(const ImageRequest& request) const;
  Tensor denoise(const ImageRequest& request, const Tensor& noise,
                 const std::function<void(int64_t step)>& on_step = {}) const;
  Tensor decode(const Tensor& latents) const;

 private:
  TextConditioning encode(const std::string& text) const;
  TextConditioning encode_negative(const ImageRequest& request, const TextConditioning& positive) const;

  const Sdxl& sdxl_;
  NoiseSchedule schedule_;
  ClipTokenizer tokenizer_, tokenizer_2_;
  bool zeros_for_no_negative_;
};

}  // namespace wick
