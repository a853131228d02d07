// A dataset as the denoiser sees it: the frozen VAE and text encoders run once, before the first step.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "wick/ranks/ranks.h"
#include "wick/train/augment.h"
#include "wick/train/batches.h"
#include "wick/train/dataset.h"
#include "wick/train/encoding_cache.h"
#include "wick/train/objective.h"

namespace wick {

struct LatentCacheOptions {
  int64_t batch_size = 1;
  StepOrder order = {};
  uint64_t seed = 0;                                             // of the order of batches and of captions' variants
  float guidance = 1;                                            // that the model is told
  std::function<void(size_t done, size_t total)> progress = {};  // called while the cache is made
  // Called before the first caption is encoded, if one has to be: the text encoders may come.
  std::function<void()> before_captions = {};
  std::function<void()> between = {};  // called behind the captions and before the pictures
  // Called once the captions are encoded, if a picture has to be: the text encoders may go, and the VAE may come.
  std::function<void()> before_pictures = {};
  EncodingCache* caption_cache = nullptr;  // of frozen text encoders
  // Bytes of the host's memory for what captions became; 0: half of what is free. Where they are more, they stay in
  // caption_cache, if there is one, and are read from there when a batch wants them.
  size_t most_of_captions = 0;
  EncodingCache* picture_cache = nullptr;
  Ranks* ranks = nullptr;  // of which each encodes a share into those caches, before all read all of it
};

// Rows of one shape and dtype, on the host.
class RowTable {
 public:
  RowTable() = default;
  RowTable(int64_t rows, const Tensor& row);  // for rows of the shape [1, ...] and dtype of this one

  void set(int64_t index, const Tensor& row);
  const Shape& shape() const { return shape_; }                  // [1, ...]
  Tensor operator[](const std::vector<int64_t>& indices) const;  // [B, ...]

 private:
  Shape shape_;
  Tensor table_;  // [N, numel]
};

class LatentCache {
 public:
  // The model has its text encoders by the time of options.before_captions, its VAE's encoder by that of
  // before_pictures. It keeps the latter if the data set is augmented endlessly: such pictures are read and encoded as
  // they come, others once, and mirrored once more.
  LatentCache(const Diffusion& model, Dataset dataset, const LatentCacheOptions& options = {});

  // The next batch, its latents sampled anew from their posterior.
  Batch next(TrainRng& rng);
  // Batches from the next one on: some parts of their conditioning, the shape of their latents, and their first
  // sample's number. Moves `order`, rng.crop and rng.caption, copies of the run's, on as next() would.
  struct Glimpse {
    Shape latents;
    std::optional<uint64_t> number;
    NamedTensors conditioning;
  };
  Glimpse peek(BatchSampler& order, TrainRng& rng, const std::vector<std::string>& parts) const;

  // A sentence for the user, where captions' encodings stay on the disk; else empty.
  const std::string& remark() const { return remark_; }
  const Dataset& dataset() const { return dataset_; }
  const BatchSampler& batches() const { return sampler_; }
  BatchSampler& batches() { return sampler_; }

 private:
  struct Latents {
    RowTable mean, deviation;
  };
  struct Part {  // of the conditioning
    std::string name;
    Shape shape;     // of a caption's
    DType dtype;     // likewise
    Memory* memory;  // where the model wants it
    RowTable rows;   // empty where they stay on the disk
  };

  void encode_pictures(const LatentCacheOptions& options);
  void encode_share_of_pictures(const LatentCacheOptions& options) const;
  NamedTensors encoded_picture(const Example& example, bool is_mirrored, const LatentCacheOptions& options) const;
  NamedTensors encoded_caption(const std::string& caption, const LatentCacheOptions& options) const;
  void read_masks();
  LatentPosterior posterior_of(const Image& picture) const;
  const Augmentation& augmentation_of(size_t example) const;
  std::vector<Look> draw_looks(const SampledBatch<size_t>& batch, TrainRng& rng) const;
  Shape latent_shape(const std::vector<size_t>& examples) const;
  void encode_captions(const LatentCacheOptions& options);
  void begin_parts(const NamedTensors& caption, size_t captions, const LatentCacheOptions& options);
  bool has_form_of_parts(const NamedTensors& caption) const;  // true of any before the first
  NamedTensors from_disk(int64_t caption) const;
  int64_t draw_caption(size_t example, Rng& rng) const;
  Tensor sample_latents(const SampledBatch<size_t>& batch, const std::vector<Look>& looks, TrainRng& rng) const;
  LatentPosterior posteriors(const std::vector<size_t>& examples, const std::vector<Look>& looks) const;
  Tensor weights(const std::vector<size_t>& examples, const std::vector<Look>& looks) const;
  // All parts, or those of these names.
  NamedTensors conditioning(const SampledBatch<size_t>& batch, const std::vector<Look>& looks, TrainRng& rng,
                            const std::vector<std::string>& names = {}) const;

  const Diffusion& model_;
  Dataset dataset_;
  float guidance_;
  BatchSampler sampler_;
  std::map<Size, Latents> latents_;
  std::vector<int64_t> rows_;  // an example's, within its bucket's latents; mirrored it is the next one
  std::vector<Tensor> masks_;  // [1, h, w, 1], of examples that have one in one place
  // The variants of an example's captions, of which a sample has one: rows of the parts; row 0 is the empty caption.
  std::vector<std::vector<int64_t>> captions_;
  std::vector<Part> parts_;
  EncodingCache* on_disk_ = nullptr;     // has the rows of parts
  std::vector<std::string> of_caption_;  // texts, of rows on the disk
  std::string remark_;
};

// Decodes the pictures that no cache has, and all masks, on all processors. Throws Error with all that cannot be
// decoded.
void check_decodable(const Dataset& dataset, const EncodingCache* cache, const Progress& progress);

// The captions that the model's tokenizers cut, for the user: the first of them, how much of it, and how many others.
// Empty where all captions fit.
std::string cut_captions(const Dataset& dataset, const Diffusion& model);

// A batch like a LatentCache's, of blank pictures without captions, and encoded in the same way: on memory that only
// counts this finds the bytes (train/plan.h).
Batch blank_batch(const Diffusion& model, Size size, int64_t count, const std::function<void()>& before_pictures = {});
// Encodes as many blank pictures as the latents of a batch are of, as a LatentCache does it with those that come.
void encode_blank(const Diffusion& model, const Batch& batch);

// Buckets for a model: of these resolutions, 0 for its native one, and with sides that are multiples of `step`, 0 for
// 64 or what its latents divide into. Throws UsageError for a step that they do not, and for a resolution that is there
// twice.
Resolutions bucket_options(const LatentSpace& space, const std::vector<Resolution>& resolutions = {0},
                           bool upscale = true, int64_t step = 0);

}  // namespace wick
