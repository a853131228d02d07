#include "wick/train/latent_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "wick/io/count.h"
#include "wick/text/clip_tokenizer.h"
#include "wick/train/faults.h"

namespace wick {
namespace {

Tensor make_table(const Shape& shape) {
  const MemoryScope scope(Purpose::data);
  return Tensor::empty(shape);
}

// Row `index` of a table [N, ...], to be written to.
Tensor row(const Tensor& table, int64_t index) {
  const int64_t width = table.numel() / table.dim(0);
  return table.window({1, width}, {width, 1}, index * width);
}

void write_row(const Tensor& table, int64_t index, const Tensor& values) {
  table.backend().copy(row(table, index), reshape(values.to(table.memory()), {1, values.numel()}));
}

Tensor with_batch(const Tensor& rows, const Shape& shape) {
  Shape full{rows.dim(0)};
  for (const int64_t d : shape) full.push_back(d);
  return reshape(rows, full);
}

Tensor ids_tensor(const std::vector<std::vector<int64_t>>& table, const std::vector<int64_t>& rows) {
  std::vector<int64_t> ids;
  for (const int64_t r : rows) ids.insert(ids.end(), table[size_t(r)].begin(), table[size_t(r)].end());
  return Tensor::of(ids, {int64_t(rows.size()), int64_t(table.front().size())});
}

}  // namespace

LatentCache::LatentCache(const Sdxl& sdxl, const std::filesystem::path& model, Dataset dataset,
                         const LatentCacheOptions& options)
    : memory_(sdxl.memory),
      dataset_(std::move(dataset)),
      caption_dropout_(options.caption_dropout),
      encode_text_(options.encode_text),
      sampler_(dataset_.shown(), options.batch_size, options.seed) {
  const TapePause frozen;
  encode_captions(sdxl, model);
  encode_images(sdxl, options.progress);
}

void LatentCache::encode_images(const Sdxl& sdxl, const std::function<void(size_t, size_t)>& progress) {
  const VaeConfig& vae = sdxl.config.vae;
  check(sdxl.vae_encoder != nullptr, "LatentCache: the model was loaded without its VAE encoder");
  rows_.resize(dataset_.examples.size());
  size_t done = 0;
  Faults faults;
  for (const auto& [size, examples] : dataset_.buckets()) {
    Latents& bucket = latents_[size];
    for (size_t i = 0; i < examples.size(); ++i) {
      Image picture;
      faults.collect([&] { picture = load_image(dataset_.examples[examples[i]]); });
      if (progress) progress(++done, dataset_.examples.size());
      if (!faults.empty()) continue;  // the rest is only looked at
      const Tensor image = image_to_tensor(picture).to(sdxl.memory);
      const Gaussian posterior = (*sdxl.vae_encoder)(with_batch(reshape(image, {1, image.numel()}), image.shape()));
      if (i == 0) {
        const Shape& shape = posterior.mean.shape();
        bucket.shape = {shape[1], shape[2], shape[3]};
        bucket.mean = make_table({int64_t(examples.size()), bucket.shape.numel()});
        bucket.deviation = make_table(bucket.mean.shape());
      }
      write_row(bucket.mean, int64_t(i),
                affine(posterior.mean, vae.scaling_factor, -vae.shift_factor * vae.scaling_factor));
      write_row(bucket.deviation, int64_t(i), vae.scaling_factor * exp(0.5f * posterior.logvar));
      rows_[examples[i]] = {size, int64_t(i)};
    }
    sdxl.memory.trim();  // the next pictures are of another size
  }
  faults.check(dataset_.folder.string());
}

void LatentCache::encode_captions(const Sdxl& sdxl, const std::filesystem::path& model) {
  const ClipTokenizer tokenizer = ClipTokenizer::load(model / "tokenizer");
  const ClipTokenizer tokenizer_2 = ClipTokenizer::load(model / "tokenizer_2");
  std::map<std::string, int64_t> rows{{"", 0}};
  std::vector<std::string> distinct{""};
  for (const Example& example : dataset_.examples) {
    const auto [found, is_new] = rows.emplace(example.caption, int64_t(distinct.size()));
    if (is_new) distinct.push_back(example.caption);
    captions_.push_back(found->second);
  }
  for (const std::string& caption : distinct) {
    ids_.push_back(tokenizer.encode(caption));
    ids_2_.push_back(tokenizer_2.encode(caption));
  }
  if (!encode_text_) return;

  const int64_t count = int64_t(distinct.size());
  for (int64_t i = 0; i < count; ++i) {
    const TextConditioning text = sdxl.encode_text(ids_tensor(ids_, {i}), ids_tensor(ids_2_, {i}));
    if (i == 0) {
      context_shape_ = {text.context.dim(1), text.context.dim(2)};
      context_ = make_table({count, context_shape_.numel()});
      pooled_ = make_table({count, text.pooled.dim(1)});
    }
    write_row(context_, i, text.context);
    write_row(pooled_, i, text.pooled);
  }
}

std::string cut_captions(const Dataset& dataset, const std::filesystem::path& model) {
  const ClipTokenizer tokenizer = ClipTokenizer::load(model / "tokenizer");
  std::string first;
  size_t others = 0;
  for (const Example& example : dataset.examples) {
    const int64_t length = tokenizer.length(example.caption), cut = length - tokenizer.max_length();
    if (cut <= 0) continue;
    if (first.empty())
      first = fmt::format("{}: the caption takes {}; the last {} of them are cut, since the model reads {}",
                          std::filesystem::path(example.image).replace_extension(".txt").string(),
                          count_of(length - 2, "token"), cut, tokenizer.max_length() - 2);
    else
      ++others;
  }
  if (others > 0) first += fmt::format("; likewise {}", count_of(others, "other"));
  return first;
}

Batch LatentCache::next(TrainRng& rng) {
  const std::vector<size_t>& examples = sampler_.next();
  std::vector<float> sizes;
  for (const size_t i : examples)
    for (const float number : time_ids(dataset_.examples[i])) sizes.push_back(number);
  Batch batch{.latents = sample_latents(examples, rng.latent),
              .time_ids = Tensor::of(sizes, {int64_t(examples.size()), 6}, memory_)};
  add_text(batch, examples, rng.caption);
  return batch;
}

Tensor LatentCache::sample_latents(const std::vector<size_t>& examples, Rng& rng) const {
  const Latents& bucket = latents_.at(rows_[examples.front()].bucket);
  std::vector<int64_t> rows;
  for (const size_t i : examples) rows.push_back(rows_[i].index);
  const Tensor index = Tensor::of(rows, {int64_t(rows.size())});
  const Tensor mean = embedding(bucket.mean, index), deviation = embedding(bucket.deviation, index);
  return with_batch(mean + deviation * random_normal(mean.shape(), rng), bucket.shape).to(memory_);
}

void LatentCache::add_text(Batch& batch, const std::vector<size_t>& examples, Rng& rng) const {
  std::vector<int64_t> rows;
  for (const size_t i : examples) {
    const bool drop = caption_dropout_ > 0 && double(rng.uniform()) < caption_dropout_;
    rows.push_back(drop ? 0 : captions_[i]);
  }
  if (!encode_text_) {
    batch.ids = ids_tensor(ids_, rows);
    batch.ids_2 = ids_tensor(ids_2_, rows);
    return;
  }
  const Tensor index = Tensor::of(rows, {int64_t(rows.size())});
  batch.text = {.context = with_batch(embedding(context_, index), context_shape_).to(memory_),
                .pooled = embedding(pooled_, index).to(memory_)};
}

Batch blank_batch(const Sdxl& sdxl, Size size, int64_t count, bool encode_text) {
  const TapePause frozen;
  Memory& memory = sdxl.memory;
  const auto ids = [&](int64_t rows) {
    const int64_t length = sdxl.config.text_encoder.positions;
    return Tensor::of(std::vector<int64_t>(size_t(rows * length)), {rows, length});
  };
  Batch batch{.time_ids = zeros({count, kTimeIds}, DType::f32, memory)};
  if (encode_text) {
    const TextConditioning one = sdxl.encode_text(ids(1), ids(1));
    batch.text = {.context = zeros({count, one.context.dim(1), one.context.dim(2)}, DType::f32, memory),
                  .pooled = zeros({count, one.pooled.dim(1)}, DType::f32, memory)};
  } else {
    batch.ids = batch.ids_2 = ids(count);
  }
  const Shape one = (*sdxl.vae_encoder)(zeros({1, size.height, size.width, 3}, DType::f32, memory)).mean.shape();
  batch.latents = zeros({count, one[1], one[2], one[3]}, DType::f32, memory);
  return batch;
}

BucketOptions sdxl_buckets(const std::filesystem::path& model, int64_t resolution, bool upscale) {
  const int64_t factor = VaeConfig::read(model / "vae").factor();
  const int64_t halvings = int64_t(UNetConfig::read(model / "unet").channels.size()) - 1;
  const int64_t native = Config::read(model / "unet" / "config.json").integer("sample_size", kPositive) * factor;
  const int64_t granularity = factor << halvings;  // so that every level of the UNet has whole pixels
  BucketOptions options{.resolution = resolution > 0 ? resolution : native, .upscale = upscale};
  const int64_t wanted = std::clamp<int64_t>(options.resolution / 4, granularity, std::max<int64_t>(64, granularity));
  options.step = wanted / granularity * granularity;
  return options;
}

}  // namespace wick
