#include "wick/train/latent_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "wick/io/count.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

Shape with_rows(int64_t rows, Shape shape) {
  shape[0] = rows;
  return shape;
}

Tensor row_of(const Tensor& table, int64_t index) { return table.window({table.dim(1)}, {1}, index * table.dim(1)); }

// [H, W, 3] -> [1, H, W, 3]
Tensor as_batch(const Tensor& image) { return reshape(image, {1, image.dim(0), image.dim(1), image.dim(2)}); }

PictureFrame frame_of(const Example& example, float guidance) {
  const Placement& p = example.placement;
  return {.height = example.size.height,
          .width = example.size.width,
          .crop_top = p.crop_top,
          .crop_left = p.crop_left,
          .target_height = p.bucket.height,
          .target_width = p.bucket.width,
          .guidance = guidance};
}

}  // namespace

RowTable::RowTable(int64_t rows, const Tensor& row) : shape_(row.shape()) {
  const MemoryScope scope(Purpose::data);
  table_ = Tensor::empty({rows, row.numel()}, row.dtype());
  set(0, row);
}

void RowTable::set(int64_t index, const Tensor& row) {
  check(row.shape() == shape_, "RowTable: expected a row {}, found {}", shape_, row.shape());
  table_.backend().copy(row_of(table_, index), reshape(row.to(table_.memory()), {row.numel()}));
}

Tensor RowTable::operator[](const std::vector<int64_t>& indices) const {
  const Tensor rows = Tensor::empty({int64_t(indices.size()), table_.dim(1)}, table_.dtype());
  for (size_t i = 0; i < indices.size(); ++i) rows.backend().copy(row_of(rows, int64_t(i)), row_of(table_, indices[i]));
  return reshape(rows, with_rows(int64_t(indices.size()), shape_));
}

LatentCache::LatentCache(const Diffusion& model, Dataset dataset, const LatentCacheOptions& options)
    : model_(model),
      dataset_(std::move(dataset)),
      guidance_(options.guidance),
      sampler_(dataset_.batch_buckets(options.batch_size), options.seed) {
  const TapePause frozen;
  encode_captions(options.seed);
  if (options.before_pictures) options.before_pictures();
  encode_pictures(options.progress);
}

void LatentCache::encode_pictures(const std::function<void(size_t, size_t)>& progress) {
  rows_.resize(dataset_.examples.size());
  size_t done = 0;
  Faults faults;
  for (const auto& [size, examples] : dataset_.buckets()) {
    const auto count = int64_t(examples.size());
    for (int64_t i = 0; i < count; ++i) {
      const size_t example = examples[size_t(i)];
      Image picture;
      faults.collect([&] { picture = load_image(dataset_.examples[example]); });
      if (progress) progress(++done, dataset_.examples.size());
      if (!faults.empty()) continue;  // the rest is only looked at
      const LatentPosterior posterior = model_.encode(as_batch(image_to_tensor(picture).to(model_.memory())));
      Latents& bucket = latents_[size];
      if (i == 0) bucket = {RowTable(count, posterior.mean), RowTable(count, posterior.deviation)};
      bucket.mean.set(i, posterior.mean);
      bucket.deviation.set(i, posterior.deviation);
      rows_[example] = i;
    }
    model_.memory().trim();  // the next pictures are of another size
  }
  faults.check(dataset_.sources.path.string());
}

void LatentCache::encode_captions(uint64_t seed) {
  std::map<std::string, int64_t> rows{{"", 0}};
  std::vector<std::string> distinct{""};
  for (const Example& example : dataset_.examples) {
    const CaptionOptions& options = dataset_.subset_of(example).captions;
    std::vector<int64_t>& variants = captions_.emplace_back();
    for (const std::string& caption : example.captions)
      for (int64_t i = 0; i < (options.varies() ? options.variants : 1); ++i) {
        const std::string variant = caption_variant(caption, options, seed, i);
        const auto [found, is_new] = rows.emplace(variant, int64_t(distinct.size()));
        if (is_new) distinct.push_back(variant);
        variants.push_back(found->second);
      }
  }
  const auto count = int64_t(distinct.size());
  for (int64_t i = 0; i < count; ++i) {
    const NamedTensors caption = model_.caption(distinct[size_t(i)]);
    if (i == 0)
      for (const auto& [name, row] : caption) parts_.push_back({name, &row.memory(), RowTable(count, row)});
    for (Part& part : parts_) part.rows.set(i, caption[part.name]);
  }
}

Batch LatentCache::next(TrainRng& rng) {
  const std::vector<size_t>& examples = sampler_.next();
  return {.latents = sample_latents(examples, rng.latent), .conditioning = conditioning(examples, rng.caption)};
}

Tensor LatentCache::sample_latents(const std::vector<size_t>& examples, Rng& rng) const {
  const Latents& bucket = latents_.at(dataset_.examples[examples.front()].placement.bucket);
  std::vector<int64_t> rows;
  for (const size_t i : examples) rows.push_back(rows_[i]);
  const Tensor mean = bucket.mean[rows];
  return (mean + bucket.deviation[rows] * random_normal(mean.shape(), rng)).to(model_.memory());
}

LatentCache::Glimpse LatentCache::peek(BatchSampler& order, TrainRng& rng,
                                       const std::vector<std::string>& parts) const {
  const std::vector<size_t>& examples = order.next();
  const Latents& bucket = latents_.at(dataset_.examples[examples.front()].placement.bucket);
  return {with_rows(int64_t(examples.size()), bucket.mean.shape()), conditioning(examples, rng.caption, parts)};
}

// The numbers that a sample takes do not depend on what they are.
int64_t LatentCache::draw_caption(size_t example, Rng& rng) const {
  const double dropout = dataset_.subset_of(dataset_.examples[example]).captions.dropout;
  const std::vector<int64_t>& variants = captions_[example];
  const bool drop = dropout > 0 && double(rng.uniform()) < dropout;
  const int64_t row = variants[variants.size() > 1 ? rng.below(variants.size()) : 0];
  return drop ? 0 : row;
}

NamedTensors LatentCache::conditioning(const std::vector<size_t>& examples, Rng& rng,
                                       const std::vector<std::string>& names) const {
  std::vector<int64_t> rows;
  std::vector<PictureFrame> frames;
  for (const size_t i : examples) {
    rows.push_back(draw_caption(i, rng));
    frames.push_back(frame_of(dataset_.examples[i], guidance_));
  }
  const auto wanted = [&](const std::string& name) { return names.empty() || std::ranges::count(names, name) > 0; };
  NamedTensors all;
  for (const auto& [name, value] : model_.framing(frames))
    if (wanted(name)) all.add(name, value);
  for (const Part& part : parts_)
    if (wanted(part.name)) all.add(part.name, part.rows[rows].to(*part.memory));
  return all;
}

std::string cut_captions(const Dataset& dataset, const Diffusion& model) {
  std::string first;
  size_t others = 0;
  for (const Example& example : dataset.at().examples) {
    const std::string& longest = *std::ranges::max_element(
        example.captions, {}, [&](const std::string& caption) { return model.length(caption).tokens; });
    const auto [tokens, limit] = model.length(longest);
    if (tokens <= limit) continue;
    if (first.empty())
      first = fmt::format("{}: the caption takes {}; the last {} of them are cut, since the model reads {}",
                          example.caption_file.empty() ? example.image.string() : example.caption_file.string(),
                          count_of(tokens, "token"), tokens - limit, limit);
    else
      ++others;
  }
  if (others > 0) first += fmt::format("; likewise {}", count_of(others, "other"));
  return first;
}

Batch blank_batch(const Diffusion& model, Size size, int64_t count, const std::function<void()>& before_pictures) {
  const TapePause frozen;
  const auto blank = [&](const Tensor& row) { return zeros(with_rows(count, row.shape()), row.dtype(), row.memory()); };
  const PictureFrame frame{
      .height = size.height, .width = size.width, .target_height = size.height, .target_width = size.width};
  Batch batch{.latents = {}, .conditioning = model.framing(std::vector<PictureFrame>(size_t(count), frame))};
  for (const auto& [name, row] : model.caption("")) batch.conditioning.add(name, blank(row));
  if (before_pictures) before_pictures();
  batch.latents = blank(model.encode(zeros({1, size.height, size.width, 3}, DType::f32, model.memory())).mean);
  return batch;
}

Resolutions bucket_options(const LatentSpace& space, const std::vector<int64_t>& resolutions, bool upscale,
                           int64_t step) {
  const int64_t least = space.bucket_step;
  check_usage(step % least == 0, "--bucket-step: expected a multiple of {}, the least step of this model, found {}",
              least, step);
  Resolutions all;
  for (const int64_t asked : resolutions) {
    const int64_t resolution = asked > 0 ? asked : space.native;
    check_usage(std::ranges::count(all, resolution, &BucketOptions::resolution) == 0,
                "--resolution: expected each once, found {} twice", resolution);
    check_usage(resolution <= space.largest,
                "--resolution: expected at most {}, the longest side of this model, found {}", space.largest,
                resolution);
    const int64_t wanted = std::clamp<int64_t>(resolution / 4, least, std::max<int64_t>(64, least));
    all.push_back({.resolution = resolution, .step = step > 0 ? step : wanted / least * least, .upscale = upscale});
  }
  return all;
}

}  // namespace wick
