// A dataset as the UNet sees it: the frozen VAE and text encoders run once, before the first step.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "wick/train/batches.h"
#include "wick/train/dataset.h"
#include "wick/train/objective.h"

namespace wick {

struct LatentCacheOptions {
  int64_t batch_size = 1;
  uint64_t seed = 0;           // of the order of batches
  double caption_dropout = 0;  // the share of captions that are left empty
  bool encode_text = true;     // else batches hold token ids, for encoders that are trained themselves
  std::function<void(size_t done, size_t total)> progress = {};  // called while the cache is made
};

class LatentCache {
 public:
  // `model` is the diffusers folder that `sdxl` came from, for its tokenizers.
  LatentCache(const Sdxl& sdxl, const std::filesystem::path& model, Dataset dataset,
              const LatentCacheOptions& options = {});

  // The next batch, its latents sampled anew from their posterior.
  Batch next(TrainRng& rng);

  const Dataset& dataset() const { return dataset_; }
  BatchSampler& batches() { return sampler_; }

 private:
  struct Row {  // where an example's latent lies
    Size bucket;
    int64_t index;
  };
  struct Latents {  // [N, h * w * 4] each, scaled
    Shape shape;    // h, w, 4
    Tensor mean, deviation;
  };

  void encode_images(const Sdxl& sdxl, const std::function<void(size_t, size_t)>& progress);
  void encode_captions(const Sdxl& sdxl, const std::filesystem::path& model);
  Tensor sample_latents(const std::vector<size_t>& examples, Rng& rng) const;
  void add_text(Batch& batch, const std::vector<size_t>& examples, Rng& rng) const;

  Memory& memory_;  // of the model; the cache itself stays on the host
  Dataset dataset_;
  double caption_dropout_;
  bool encode_text_;
  BatchSampler sampler_;
  std::map<Size, Latents> latents_;
  std::vector<Row> rows_;          // an example's
  std::vector<int64_t> captions_;  // an example's caption, a row of the tables below; row 0 is the empty caption
  std::vector<std::vector<int64_t>> ids_, ids_2_;
  Shape context_shape_;  // T, D
  Tensor context_, pooled_;
};

// What to tell of captions that the tokenizers of `model` cut: the first of them, how much of it, and how many others.
// Empty where all captions fit.
std::string cut_captions(const Dataset& dataset, const std::filesystem::path& model);

// A batch as a LatentCache gives it, of blank pictures without captions, and encoded as one encodes: on memory that
// only counts, what that takes is then known (train/plan.h).
Batch blank_batch(const Sdxl& sdxl, Size size, int64_t count, bool encode_text);

// Buckets for a model: its native resolution unless `resolution` is given, in steps that its latents divide into.
BucketOptions sdxl_buckets(const std::filesystem::path& model, int64_t resolution = 0, bool upscale = true);

}  // namespace wick
