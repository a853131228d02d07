#include "wick/train/latent_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "wick/backend/cpu/parallel.h"
#include "wick/backend/registry.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

constexpr const char *kMean = "mean", *kDeviation = "deviation";

Shape with_rows(int64_t rows, Shape shape) {
  shape[0] = rows;
  return shape;
}

Tensor row_of(const Tensor& table, int64_t index) { return table.window({table.dim(1)}, {1}, index * table.dim(1)); }

// [H, W, 3] -> [1, H, W, 3]
Tensor as_batch(const Tensor& image) { return reshape(image, {1, image.dim(0), image.dim(1), image.dim(2)}); }

// Of its latents in an EncodingCache.
std::string key_of(const Example& example, bool is_mirrored) {
  const auto& [bucket, scaled, left, top] = example.placement;
  return fmt::format("picture {} scaled to {}x{}, of which {}x{} at ({}, {}){}", example.sha256, scaled.width,
                     scaled.height, bucket.width, bucket.height, left, top, is_mirrored ? ", mirrored" : "");
}

std::string key_of(const std::string& caption) { return "caption " + caption; }

// Of a mirrored picture the left of what is seen was the right.
PictureFrame frame_of(const Example& example, const Look& look, float guidance) {
  const Placement& p = example.placement;
  return {.height = example.size.height,
          .width = example.size.width,
          .crop_top = look.crop_top,
          .crop_left = look.mirrored ? p.scaled.width - p.bucket.width - look.crop_left : look.crop_left,
          .target_height = p.bucket.height,
          .target_width = p.bucket.width,
          .guidance = guidance};
}

// Makes, of what is not in `cache` yet, this rank's share: encode(i) of each, by its key. All have come when it
// returns.
template <class Key, class Encode>
void encode_share(Ranks* ranks, EncodingCache* cache, size_t count, const Key& key, const Encode& encode) {
  if (!ranks || ranks->count() == 1 || !cache) return;
  ranks->barrier();  // before the first file is written: all look for the same ones
  std::vector<size_t> missing;
  for (size_t i = 0; i < count; ++i)
    if (!cache->has(key(i))) missing.push_back(i);
  ranks->barrier();
  size_t own = 0;
  for (size_t i = size_t(ranks->rank()); i < missing.size(); i += size_t(ranks->count()), ++own) {
    ranks->check();
    encode(missing[i]);
  }
  cache->count_as_made(missing.size(), own);
  ranks->barrier();
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
      sampler_(dataset_.batch_buckets(options.batch_size), options.seed, options.order) {
  const TapePause frozen;
  encode_captions(options);
  if (options.between) options.between();
  encode_pictures(options);
  read_masks();
}

void LatentCache::encode_share_of_pictures(const LatentCacheOptions& options) const {
  std::vector<std::pair<size_t, bool>> all;  // an example, and whether it is mirrored
  for (size_t i = 0; i < dataset_.examples.size(); ++i) {
    if (augmentation_of(i).is_endless()) continue;
    all.emplace_back(i, false);
    if (augmentation_of(i).flip) all.emplace_back(i, true);
  }
  const auto example = [&](size_t i) -> const Example& { return dataset_.examples[all[i].first]; };
  encode_share(
      options.ranks, options.picture_cache, all.size(), [&](size_t i) { return key_of(example(i), all[i].second); },
      [&](size_t i) { encoded_picture(example(i), all[i].second, options); });
}

void LatentCache::encode_pictures(const LatentCacheOptions& options) {
  encode_share_of_pictures(options);
  rows_.resize(dataset_.examples.size());
  size_t done = 0;
  Faults faults;
  if (dataset_.is_augmented_endlessly() && options.before_pictures) options.before_pictures();
  for (const auto& [size, examples] : dataset_.buckets()) {
    int64_t count = 0;
    for (const size_t i : examples) {
      rows_[i] = count;
      if (!augmentation_of(i).is_endless()) count += augmentation_of(i).flip ? 2 : 1;
    }
    for (const size_t i : examples) {
      const Example& example = dataset_.examples[i];
      const auto encode = [&, &size = size](bool is_mirrored, int64_t row) {
        const NamedTensors posterior = encoded_picture(example, is_mirrored, options);
        Latents& bucket = latents_[size];
        if (row == 0) bucket = {RowTable(count, posterior[kMean]), RowTable(count, posterior[kDeviation])};
        bucket.mean.set(row, posterior[kMean]);
        bucket.deviation.set(row, posterior[kDeviation]);
      };
      faults.collect([&] {
        if (augmentation_of(i).is_endless() || !faults.empty()) {  // it is only looked at
          load_image(example);
          return;
        }
        encode(false, rows_[i]);
        if (augmentation_of(i).flip) encode(true, rows_[i] + 1);
      });
      if (options.progress) options.progress(++done, dataset_.examples.size());
    }
    model_.memory().trim();  // the next pictures are of another size
  }
  faults.check(dataset_.sources.path.string());
}

NamedTensors LatentCache::encoded_picture(const Example& example, bool is_mirrored,
                                          const LatentCacheOptions& options) const {
  const auto encode = [&]() -> NamedTensors {
    Look look = plain_look(example);
    look.mirrored = is_mirrored;
    const Image picture = load_image(example, look);
    if (options.before_pictures) options.before_pictures();
    const LatentPosterior posterior = posterior_of(picture);
    return {{kMean, posterior.mean}, {kDeviation, posterior.deviation}};
  };
  if (!options.picture_cache) return encode();
  const LatentSpace space = model_.latents();
  const Size size = example.placement.bucket;
  const Shape shape{1, size.height / space.factor, size.width / space.factor, space.channels};
  return options.picture_cache->get(key_of(example, is_mirrored), encode, [&](const NamedTensors& found) {
    return found.size() == 2 && found.has(kMean) && found.has(kDeviation) &&
           std::ranges::all_of(
               found, [&](auto& part) { return part.value.shape() == shape && part.value.dtype() == DType::f32; });
  });
}

NamedTensors LatentCache::encoded_caption(const std::string& caption, const LatentCacheOptions& options) const {
  const auto encode = [&] {
    if (options.before_captions) options.before_captions();
    return model_.caption(caption);
  };
  if (!options.caption_cache) return encode();
  const NamedTensors made = options.caption_cache->get(
      key_of(caption), encode, [this](const NamedTensors& found) { return has_form_of_parts(found); });
  // One that does not fit has been made again. If it still does not, the first one is of another model.
  check(has_form_of_parts(made),
        "{}: its tensors are not those that the model makes of a caption; remove the file, and it is made again",
        options.caption_cache->file_of(key_of("")).string());
  return made;
}

bool LatentCache::has_form_of_parts(const NamedTensors& caption) const {
  return parts_.empty() || std::ranges::equal(caption, parts_, [](const NamedTensor& found, const Part& part) {
           return found.name == part.name && found.value.shape() == part.shape && found.value.dtype() == part.dtype;
         });
}

void LatentCache::read_masks() {
  masks_.resize(dataset_.examples.size());
  Faults faults;
  for (size_t i = 0; i < masks_.size(); ++i) {
    const Example& example = dataset_.examples[i];
    if (example.mask.empty() || augmentation_of(i).random_crop) continue;
    faults.collect([&] { masks_[i] = load_mask(example, plain_look(example), model_.latents().factor); });
  }
  faults.check(dataset_.sources.path.string());
}

LatentPosterior LatentCache::posterior_of(const Image& picture) const {
  return model_.encode(as_batch(image_to_tensor(picture).to(model_.memory())));
}

const Augmentation& LatentCache::augmentation_of(size_t example) const {
  return dataset_.subset_of(dataset_.examples[example]).augmentation;
}

void LatentCache::encode_captions(const LatentCacheOptions& cache_options) {
  std::map<std::string, int64_t> rows{{"", 0}};
  std::vector<std::string> distinct{""};
  for (const Example& example : dataset_.examples) {
    const CaptionOptions& options = dataset_.subset_of(example).captions;
    std::vector<int64_t>& variants = captions_.emplace_back();
    for (const std::string& caption : example.captions)
      for (int64_t i = 0; i < (options.varies() ? options.variants : 1); ++i) {
        const std::string variant = caption_variant(caption, options, cache_options.seed, i);
        const auto [found, is_new] = rows.emplace(variant, int64_t(distinct.size()));
        if (is_new) distinct.push_back(variant);
        variants.push_back(found->second);
      }
  }
  encode_share(
      cache_options.ranks, cache_options.caption_cache, distinct.size(), [&](size_t i) { return key_of(distinct[i]); },
      [&](size_t i) { encoded_caption(distinct[i], cache_options); });
  const auto count = int64_t(distinct.size());
  for (int64_t i = 0; i < count; ++i) {
    const NamedTensors caption = encoded_caption(distinct[size_t(i)], cache_options);
    if (i == 0) begin_parts(caption, distinct.size(), cache_options);
    check(!on_disk_ || on_disk_->has(key_of(distinct[size_t(i)])),
          "--cache: the encodings of {} do not fit into the host's memory, and are not kept on the disk either: {}",
          count_of(distinct.size(), "caption"), on_disk_->failure());
    for (Part& part : parts_)
      if (!on_disk_) part.rows.set(i, caption[part.name]);
  }
  if (on_disk_) of_caption_ = std::move(distinct);
}

void LatentCache::begin_parts(const NamedTensors& caption, size_t captions, const LatentCacheOptions& options) {
  size_t bytes = 0;
  for (const auto& [name, row] : caption) bytes += captions * size_t(row.numel()) * size_of(row.dtype());
  const size_t most =
      options.most_of_captions > 0 ? options.most_of_captions : free_memory("cpu").value_or(2 * bytes) / 2;
  if (bytes > most && options.caption_cache) {
    on_disk_ = options.caption_cache;
    remark_ = fmt::format("The encodings of {} are {}: they stay on the disk, and are read when a batch wants them.",
                          count_of(captions, "caption"), readable_bytes(bytes));
  }
  for (const auto& [name, row] : caption)
    parts_.push_back(
        {name, row.shape(), row.dtype(), &row.memory(), on_disk_ ? RowTable() : RowTable(int64_t(captions), row)});
}

NamedTensors LatentCache::from_disk(int64_t caption) const {
  const std::string& text = of_caption_[size_t(caption)];
  const auto make = [&]() -> NamedTensors {
    fail("--cache {}: the encoding of the caption {} is gone or damaged; --resume makes it again and goes on",
         on_disk_->file_of(key_of(text)).string(), quote(text));
  };
  return on_disk_->get(key_of(text), make, [this](const NamedTensors& found) { return has_form_of_parts(found); });
}

Batch LatentCache::next(TrainRng& rng) {
  const SampledBatch<size_t> batch = sampler_.next();
  const std::vector<Look> looks = draw_looks(batch, rng);
  return {.latents = sample_latents(batch, looks, rng),
          .conditioning = conditioning(batch, looks, rng),
          .weights = weights(batch.items, looks),
          .number = batch.number};
}

std::vector<Look> LatentCache::draw_looks(const SampledBatch<size_t>& batch, TrainRng& rng) const {
  std::vector<Look> looks;
  rng.each_sample(batch.number, int64_t(batch.items.size()), [&](int64_t count) {
    for (; count > 0; --count) {
      const size_t i = batch.items[looks.size()];
      looks.push_back(draw_look(dataset_.examples[i], augmentation_of(i), rng.crop));
    }
  });
  return looks;
}

// Those that are cached are drawn on the host. Endless ones come from the device, and stay there.
Tensor LatentCache::sample_latents(const SampledBatch<size_t>& batch, const std::vector<Look>& looks,
                                   TrainRng& rng) const {
  const TapePause frozen;
  const auto [mean, deviation] = posteriors(batch.items, looks);
  std::vector<Tensor> normals;
  rng.each_sample(batch.number, mean.dim(0), [&, &mean = mean](int64_t count) {
    normals.push_back(random_normal(with_rows(count, mean.shape()), rng.latent, mean.memory()));
  });
  return (mean + deviation * cat(normals, 0)).to(model_.memory());
}

LatentPosterior LatentCache::posteriors(const std::vector<size_t>& examples, const std::vector<Look>& looks) const {
  const auto row_of_look = [&](size_t i) { return rows_[examples[i]] + (looks[i].mirrored ? 1 : 0); };
  const auto found = latents_.find(dataset_.examples[examples.front()].placement.bucket);
  if (!dataset_.is_augmented_endlessly()) {
    std::vector<int64_t> rows;
    for (size_t i = 0; i < examples.size(); ++i) rows.push_back(row_of_look(i));
    return {found->second.mean[rows], found->second.deviation[rows]};
  }
  std::vector<Tensor> means, deviations;
  for (size_t i = 0; i < examples.size(); ++i) {
    const bool comes = augmentation_of(examples[i]).is_endless();
    const LatentPosterior one = comes ? posterior_of(load_image(dataset_.examples[examples[i]], looks[i]))
                                      : LatentPosterior{found->second.mean[{row_of_look(i)}].to(model_.memory()),
                                                        found->second.deviation[{row_of_look(i)}].to(model_.memory())};
    means.push_back(one.mean), deviations.push_back(one.deviation);
  }
  return {cat(means, 0), cat(deviations, 0)};
}

// All batches of a run have weights of one form, or none has.
Tensor LatentCache::weights(const std::vector<size_t>& examples, const std::vector<Look>& looks) const {
  if (!dataset_.has_weights()) return {};
  Shape shape = latent_shape(examples);
  shape[3] = 1;
  if (!dataset_.has_masks()) shape[1] = shape[2] = 1;
  const Tensor all = full(shape, 1);
  const int64_t count = all.numel() / all.dim(0);
  for (size_t i = 0; i < examples.size(); ++i) {
    const Example& example = dataset_.examples[examples[i]];
    float* const row = all.data<float>() + int64_t(i) * count;
    if (!example.mask.empty()) {
      Tensor mask = masks_[examples[i]];
      if (!mask)
        mask = load_mask(example, looks[i], model_.latents().factor);
      else if (looks[i].mirrored)
        mask = mirrored_mask(mask);
      std::copy_n(mask.data<float>(), count, row);
    }
    const auto weight = float(dataset_.subset_of(example).loss_weight);
    std::transform(row, row + count, row, [&](float value) { return value * weight; });
  }
  return all.to(model_.memory());
}

Shape LatentCache::latent_shape(const std::vector<size_t>& examples) const {
  const LatentSpace space = model_.latents();
  const Size size = dataset_.examples[examples.front()].placement.bucket;
  return {int64_t(examples.size()), size.height / space.factor, size.width / space.factor, space.channels};
}

LatentCache::Glimpse LatentCache::peek(BatchSampler& order, TrainRng& rng,
                                       const std::vector<std::string>& parts) const {
  const SampledBatch<size_t> batch = order.next();
  return {latent_shape(batch.items), batch.number, conditioning(batch, draw_looks(batch, rng), rng, parts)};
}

// The numbers that a sample takes do not depend on what they are.
int64_t LatentCache::draw_caption(size_t example, Rng& rng) const {
  const double dropout = dataset_.subset_of(dataset_.examples[example]).captions.dropout;
  const std::vector<int64_t>& variants = captions_[example];
  const bool drop = dropout > 0 && double(rng.uniform()) < dropout;
  const int64_t row = variants[variants.size() > 1 ? rng.below(variants.size()) : 0];
  return drop ? 0 : row;
}

NamedTensors LatentCache::conditioning(const SampledBatch<size_t>& batch, const std::vector<Look>& looks, TrainRng& rng,
                                       const std::vector<std::string>& names) const {
  std::vector<int64_t> rows;
  std::vector<PictureFrame> frames;
  rng.each_sample(batch.number, int64_t(batch.items.size()), [&](int64_t count) {
    for (; count > 0; --count) {
      const size_t i = rows.size();
      rows.push_back(draw_caption(batch.items[i], rng.caption));
      frames.push_back(frame_of(dataset_.examples[batch.items[i]], looks[i], guidance_));
    }
  });
  const auto wanted = [&](const std::string& name) { return names.empty() || std::ranges::count(names, name) > 0; };
  NamedTensors all;
  for (const auto& [name, value] : model_.framing(frames))
    if (wanted(name)) all.add(name, value);
  std::vector<NamedTensors> read;
  for (const int64_t row : rows)
    if (on_disk_ && std::ranges::any_of(parts_, wanted, &Part::name)) read.push_back(from_disk(row));
  for (const Part& part : parts_) {
    if (!wanted(part.name)) continue;
    std::vector<Tensor> values;
    for (const NamedTensors& caption : read) values.push_back(caption[part.name]);
    all.add(part.name, on_disk_ ? cat(values, 0) : part.rows[rows].to(*part.memory));
  }
  return all;
}

void check_decodable(const Dataset& dataset, const EncodingCache* cache, const Progress& progress) {
  constexpr size_t kAtOnce = 64;
  std::set<std::filesystem::path> files;
  for (const Example& example : dataset.examples) {
    if (!cache || !cache->has(key_of(example, false))) files.insert(example.image);
    if (!example.mask.empty() && example.mask != example.image) files.insert(example.mask);
  }
  const std::vector<std::filesystem::path> all(files.begin(), files.end());
  Faults faults;
  for (size_t begin = 0; begin < all.size(); begin += kAtOnce) {
    if (progress) progress("Decoding pictures", begin, all.size());
    std::vector<Faults> found(std::min(kAtOnce, all.size() - begin));
    parallel_each(int64_t(found.size()), int64_t(found.size()) * kParallelElements,
                  [&](int64_t i) { found[size_t(i)].collect([&] { readable_picture(all[begin + size_t(i)]); }); });
    for (Faults& one : found) faults.collect([&] { one.check(dataset.sources.path.string()); });
  }
  faults.check(dataset.sources.path.string());
}

std::string cut_captions(const Dataset& dataset, const Diffusion& model) {
  std::string first;
  size_t others = 0;
  for (const Example& example : dataset.at().examples) {
    const CaptionOptions& options = dataset.subset_of(example).captions;
    const auto length = [&](const std::string& caption) {
      return model.length(options.wildcards ? caption_variant(caption, options, 0, 0) : caption);
    };
    const auto [tokens, limit] = length(*std::ranges::max_element(
        example.captions, {}, [&](const std::string& caption) { return length(caption).tokens; }));
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

void encode_blank(const Diffusion& model, const Batch& batch) {
  const TapePause frozen;
  const int64_t factor = model.latents().factor, count = batch.latents.dim(0);
  std::vector<Tensor> means, deviations;
  for (int64_t i = 0; i < count; ++i) {
    const LatentPosterior one = model.encode(
        zeros({1, batch.latents.dim(1) * factor, batch.latents.dim(2) * factor, 3}, DType::f32, model.memory()));
    means.push_back(one.mean), deviations.push_back(one.deviation);
  }
  cat(means, 0), cat(deviations, 0);
}

Resolutions bucket_options(const LatentSpace& space, const std::vector<Resolution>& resolutions, bool upscale,
                           int64_t step) {
  const int64_t least = space.bucket_step;
  check_usage(step % least == 0, "--bucket-step: expected a multiple of {}, the least step of this model, found {}",
              least, step);
  Resolutions all;
  for (const Resolution asked : resolutions) {
    const Resolution resolution = asked.width > 0 ? asked : Resolution(space.native);
    check_usage(std::ranges::count(all, resolution, &BucketOptions::resolution) == 0,
                "--resolution: expected each once, found {} twice", resolution.text());
    check_usage(resolution.longer() <= space.largest,
                "--resolution: expected at most {}, the longest side of this model, found {}", space.largest,
                resolution.text());
    const int64_t wanted = std::clamp<int64_t>(resolution.shorter() / 4, least, std::max<int64_t>(64, least));
    all.push_back({.resolution = resolution, .step = step > 0 ? step : wanted / least * least, .upscale = upscale});
  }
  return all;
}

}  // namespace wick
