#include "wick/pipelines/text_to_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "wick/io/count.h"
#include "wick/ops/ops.h"

namespace wick {

namespace {

// Inputs of a step beside what the model is told: its timestep, and numbers of which the first are these.
constexpr const char *kTimestep = "timestep", *kNumbers = "numbers", *kDraw = "draw";
enum : int64_t {
  kInputScale,
  kCfg,
  kRescaled,
  kSkipScale,
  kWeights
};  // of the sampler's combinations, one latent after the other

constexpr size_t kMostKept = 8;  // of what is kept for pictures to come

Tensor number(const NamedTensors& in, int64_t index) { return in[kNumbers].window({1, 1, 1, 1}, {1, 1, 1, 1}, index); }

// The latent that a sampler keeps at this place after a step.
Tensor combined(const Sampler& sampler, size_t place, const NamedTensors& in, const std::vector<Tensor>& kept,
                const Tensor& predicted) {
  Tensor sum;
  for (size_t term = 0; term < Combination::kTerms; ++term) {
    if (!sampler.uses(place, term) || (term == Combination::kDraw && !in.has(kDraw))) continue;
    const Tensor& latent = term == Combination::kPrediction ? predicted
                           : term == Combination::kDraw     ? in[kDraw]
                                                            : kept[term];
    const Tensor part = latent * number(in, kWeights + int64_t(place * Combination::kTerms + term));
    sum = sum ? sum + part : part;
  }
  return sum;
}

// All that a step's computation depends on but shapes and values.
std::string what_is_recorded(const ImageRequest& request, const Sampler& sampler) {
  std::string what = fmt::format("{} {}{}", request.adapters, fmt::join(request.skip.layers, ","),
                                 request.cfg_rescale != 0 ? " rescaled" : "");
  for (size_t place = 0; place < sampler.kept; ++place)
    for (size_t term = 0; term < Combination::kTerms; ++term) what += sampler.uses(place, term) ? " 1" : " 0";
  return what;
}

// Of each picture x [B, h, w, C]: [B, 1, 1, 1].
Tensor variance(const Tensor& x) {
  const Shape each{x.dim(0), 1, 1, 1};
  const float share = 1 / float(x.numel() / x.dim(0));
  return sum_to(square(x - sum_to(x, each) * share), each) * share;
}

// `share` of each picture's guided prediction with the deviation of the one without.
Tensor rescaled(const Tensor& guided, const Tensor& positive, const Tensor& share) {
  const Tensor wanted = variance(positive);
  const Tensor ratio = wanted * rsqrt(wanted) * rsqrt(variance(guided));  // of the square roots
  return guided * ((ratio + -1) * share + 1);
}

// The axis of a picture, from tiles of that many of its `extent` pixels of the latent. Neighbours share a quarter or
// more of a tile, over which one fades into the other. make(begin, end) decodes a tile.
template <class Make>
Tensor in_tiles(int axis, int64_t extent, int64_t side, int64_t factor, const Make& make) {
  const int64_t stride = std::max<int64_t>(side * 3 / 4, 1);
  const int64_t count = extent <= side ? 1 : 1 + (extent - side + stride - 1) / stride;
  Tensor whole = make(0, std::min(side, extent));
  for (int64_t i = 1, end = side; i < count; ++i) {
    const int64_t begin = i * (extent - side) / (count - 1), shared = (end - begin) * factor;
    const Tensor tile = make(begin, begin + side);
    std::vector<float> shares;
    for (int64_t k = 0; k < shared; ++k) shares.push_back((float(k) + 0.5f) / float(shared));
    Shape along{1, 1, 1, 1};
    along[axis] = shared;
    const Tensor share = Tensor::of(shares, along, tile.memory());
    const int64_t before = whole.dim(axis) - shared;
    const Tensor old = slice(whole, axis, before, before + shared), fresh = slice(tile, axis, 0, shared);
    whole = cat({slice(whole, axis, 0, before), old + (fresh - old) * share, slice(tile, axis, shared, tile.dim(axis))},
                axis);
    end = begin + side;
  }
  return whole;
}

}  // namespace

Shape latent_shape(const ImageRequest& request, const LatentSpace& space) {
  return {1, request.height / space.factor, request.width / space.factor, space.channels};
}

void TextToImage::check_side(const char* name, int64_t pixels, const LatentSpace& space) {
  check_usage(pixels > 0 && pixels <= space.largest && pixels % space.side_step == 0,
              "{}: expected a multiple of {} up to {} pixels, found {}", name, space.side_step, space.largest, pixels);
}

ImageRequest shortened(ImageRequest request) {
  request.sampling.steps = std::min<int64_t>(request.sampling.steps, 2);  // shift_terminal stretches no single one
  request.sampling.skipped = 0;
  return request;
}

TextToImage::Batch::const_iterator TextToImage::end_of_batch(Batch::const_iterator first, Batch::const_iterator last,
                                                             int64_t size) {
  const auto furthest = first + std::min(std::ptrdiff_t(size), last - first);
  return std::find_if(first, furthest, [&](const ImageRequest& r) { return r.adapters != first->adapters; });
}

TextToImage TextToImage::load(Diffusion& model, DiffusionOptions options, const Batch& requests, int64_t at_once) {
  model.load(options, {DiffusionPart::text_encoders});
  TextToImage loaded(model);
  loaded.adapter_ = options.adapter;
  loaded.adapts_text_ = options.adapter && (options.adapter->covers("text_encoder") || options.adapter->has_words());
  loaded.encode(requests);
  model.drop_encoders();
  const auto end = end_of_batch(requests.begin(), requests.end(), at_once);
  options.rehearse = [&] { loaded.rehearse({requests.begin(), end}); };
  model.load(options, {DiffusionPart::vae_decoder, DiffusionPart::denoiser});
  return loaded;
}

void TextToImage::rehearse(const Batch& batch) {
  if (batch.empty() || !model_.parts_ahead().empty()) return;  // what is made ahead is made of weights, and kept
  Batch steps;
  for (const ImageRequest& request : batch) steps.push_back(shortened(request));
  // A second step would be recorded, and what is read meanwhile with it.
  const Tensor latents = denoise(steps, noise(steps), {}, /*most_steps=*/1);
  const Arena arena(model_.memory());
  decode(slice(latents, 0, 0, 1), batch.front().tile);
}

Tensor TextToImage::noise(const Batch& batch) const {
  std::vector<Tensor> starts;
  for (const ImageRequest& request : batch) {
    Rng rng(request.seed, Stream::sampler);
    starts.push_back(request.start ? request.start : random_normal(latent_shape(request, model_.latents()), rng));
  }
  return (starts.size() == 1 ? starts.front() : cat(starts, 0)).to(model_.memory());
}

NamedTensors TextToImage::encoded(const Text& text) const {
  const auto found = encoded_.find(text);
  if (found != encoded_.end()) return found->second;
  return model_.encode_text(text.is_negative ? model_.negative(text.text) : model_.caption(*text.text));
}

void TextToImage::use_adapters(const ImageRequest& request) const {
  if (adapter_) adapter_->use(request.adapters);
}

void TextToImage::encode(const Batch& requests) {
  for (const ImageRequest& request : requests) {
    use_adapters(request);
    const Text negative = negative_of(request), prompt = prompt_of(request);
    if (request.cfg != 1) encoded_.try_emplace(negative, encoded(negative));
    encoded_.try_emplace(prompt, encoded(prompt));
  }
}

// A draw of each picture, the `index`-th behind its start.
Tensor TextToImage::fresh_noise(const Batch& batch, size_t index) const {
  std::vector<Tensor> draws;
  for (const ImageRequest& request : batch) {
    const Shape shape = latent_shape(request, model_.latents());
    Rng rng(request.seed, Stream::sampler);
    rng.reserve((index + 1) * random_blocks(shape));
    check(request.draws.empty() || index < request.draws.size(), "expected a draw of noise {}, found {}", index,
          count_of(request.draws.size(), "draw"));
    draws.push_back(request.draws.empty() ? random_normal(shape, rng) : request.draws[index]);
  }
  return (draws.size() == 1 ? draws.front() : cat(draws, 0)).to(model_.memory());
}

// With guidance both passes are one batch, the negative texts first. The model is asked for uncropped pictures.
NamedTensors TextToImage::conditioning(const Batch& batch) const {
  std::vector<NamedTensors> texts;
  if (batch.front().cfg != 1)
    for (const ImageRequest& request : batch) texts.push_back(encoded(negative_of(request)));
  for (const ImageRequest& request : batch) texts.push_back(encoded(prompt_of(request)));
  NamedTensors parts = model_.joined(texts);
  std::vector<PictureFrame> frames;
  for (size_t i = 0; i < texts.size(); ++i) {
    const ImageRequest& request = batch[i % batch.size()];
    frames.push_back({.height = request.height,
                      .width = request.width,
                      .target_height = request.height,
                      .target_width = request.width,
                      .guidance = request.guidance});
  }
  parts.add(model_.framing(frames));
  return model_.prepared(parts);
}

std::string TextToImage::shapes(const Batch& batch) const { return shapes_of(conditioning(batch)); }

Tensor TextToImage::denoise(const Batch& batch, const Tensor& noise, const OnStep& on_step, int64_t most_steps) {
  const ImageRequest& request = batch.front();
  use_adapters(request);
  check_side("width", request.width, model_.latents());
  check_side("height", request.height, model_.latents());
  const int64_t rows = noise.dim(0) * (request.cfg != 1 ? 2 : 1);
  const NamedTensors parts = conditioning(batch);
  const Sampler sampler = model_.process().sampler(request.sampling, noise.shape());
  const NamedTensors& ahead = parts_ahead(batch, sampler, parts);
  Canvas& on = canvas(parts, noise.shape(), sampler.kept);
  Backend& backend = noise.backend();
  backend.affine(on.kept.front().view(), noise.view(), request.picture ? sampler.of_noise : sampler.initial_scale, 0);
  if (request.picture)
    for (int64_t i = 0; i < noise.dim(0); ++i)
      backend.accumulate(slice(on.kept.front(), 0, i, i + 1).view(), batch[size_t(i)].picture.view(),
                         sampler.of_picture);
  for (size_t i = 1; i < sampler.kept; ++i) backend.fill(on.kept[i].view(), 0);

  const std::string what = what_is_recorded(request, sampler);
  const int64_t steps = std::min(std::ssize(sampler.steps), most_steps);
  int64_t done = 0;  // of the user's steps
  size_t drawn = 0;
  std::unique_ptr<Readback> last;  // arrives at the end of the step before, so that the device always has work
  for (int64_t i = 0; i < steps; ++i) {
    const bool skips = request.skip.applies(i, steps);
    const auto body = [&](const NamedTensors& in) {
      NamedTensors all = on.parts;
      all.add(in);
      const Tensor predicted = predict(request, on.kept.front() * number(in, kInputScale), all, skips);
      std::vector<Tensor> next;
      for (size_t k = 0; k < sampler.kept; ++k) next.push_back(combined(sampler, k, in, on.kept, predicted));
      for (size_t k = 0; k < sampler.kept; ++k) backend.copy(on.kept[k].view(), next[k].view());
    };
    const SamplerStep& step = sampler.steps[size_t(i)];
    NamedTensors in = of_step(request, sampler, i, rows, ahead);
    if (step.draws()) in.add(kDraw, fresh_noise(batch, drawn++));
    on.recorder.run(skips ? what + " skips" : what, in, body);
    if (!on_step || step.is_midway) continue;
    if (last) (void)last->data(), on_step(done);
    ++done;
    if (model_.memory().on_host()) {  // where it is done by now
      on_step(done);
      continue;
    }
    last = model_.memory().read_later(on.kept.front().view().data, sizeof(float));
  }
  if (last) (void)last->data(), on_step(done);
  return clone(on.kept.front());
}

// The buffers for batches of some shapes, with these parts in them.
TextToImage::Canvas& TextToImage::canvas(const NamedTensors& parts, const Shape& latents, size_t kept) {
  const std::string key = fmt::format("{} {}{}", latents, kept, shapes_of(parts));
  if (canvases_.size() >= kMostKept && !canvases_.contains(key)) canvases_.clear();
  Backend& backend = model_.memory().backend();
  const auto [found, is_new] = canvases_.try_emplace(key, Canvas{{}, {}, Recorder(backend)});
  Canvas& canvas = found->second;
  for (const auto& [name, value] : parts) {
    if (is_new)
      canvas.parts.add(name, clone(value));
    else
      backend.copy(canvas.parts[name].view(), value.view());
  }
  while (canvas.kept.size() < kept) canvas.kept.push_back(Tensor::empty(latents, DType::f32, model_.memory()));
  return canvas;
}

// A step's own inputs. Numbers lie on the device, so that a recorded step reads their current values.
NamedTensors TextToImage::of_step(const ImageRequest& request, const Sampler& sampler, int64_t i, int64_t rows,
                                  const NamedTensors& ahead) const {
  const SamplerStep& step = sampler.steps[size_t(i)];
  std::vector<float> numbers{step.input_scale, request.cfg, request.cfg_rescale, request.skip.scale};
  for (const Combination& latent : step.next)
    for (const double weight : latent.weights) numbers.push_back(float(weight));
  Memory& memory = model_.memory();
  NamedTensors in{{kTimestep, full({rows}, step.timestep, DType::f32, memory)},
                  {kNumbers, Tensor::of(numbers, {int64_t(numbers.size())}, memory)}};
  for (const auto& [name, value] : ahead) in.add(name, slice(value, 0, i * rows, (i + 1) * rows).to(memory));
  return in;
}

// Rows for each step, as many as a batch has. They are the same for all pictures of the same texts.
const NamedTensors& TextToImage::parts_ahead(const Batch& batch, const Sampler& sampler, const NamedTensors& parts) {
  const std::vector<std::string> names = model_.parts_ahead();
  if (names.empty()) return ahead_[""];
  const auto steps = int64_t(sampler.steps.size()), rows = parts[names.front()].dim(0);
  std::vector<float> timesteps;
  for (const SamplerStep& step : sampler.steps) timesteps.insert(timesteps.end(), size_t(rows), step.timestep);
  std::string told = fmt::format("{} {} {}", batch.front().adapters, batch.front().guidance, fmt::join(timesteps, ","));
  for (const ImageRequest& request : batch)
    told += fmt::format(" {:?} {:?}", request.cfg != 1 ? request.negative.value_or("") : "", request.prompt);
  if (const auto found = ahead_.find(told); found != ahead_.end()) return found->second;
  if (ahead_.size() >= kMostKept) ahead_.clear();
  NamedTensors repeated;
  for (const std::string& name : names) repeated.add(name, cat(std::vector<Tensor>(size_t(steps), parts[name]), 0));
  return ahead_[told] = model_.ahead(Tensor::of(timesteps, {steps * rows}, model_.memory()), repeated);
}

// With guidance of both kinds.
Tensor TextToImage::predict(const ImageRequest& request, const Tensor& x, const NamedTensors& parts, bool skips) const {
  const int64_t pictures = x.dim(0), rows = parts[kTimestep].dim(0);
  const bool guided = rows > pictures;
  const Tensor both = model_.predict(guided ? cat({x, x}, 0) : x, parts[kTimestep], parts);
  const Tensor positive = slice(both, 0, rows - pictures, rows), negative = slice(both, 0, 0, pictures);
  Tensor predicted = guided ? negative + (positive - negative) * number(parts, kCfg) : positive;
  if (guided && request.cfg_rescale != 0) predicted = rescaled(predicted, positive, number(parts, kRescaled));
  if (!skips) return predicted;
  NamedTensors alone;
  for (const auto& [name, value] : parts)
    alone.add(name, name == kNumbers || name == kDraw ? value : slice(value, 0, rows - pictures, rows));
  const Tensor without = model_.predict_without(request.skip.layers, x, alone[kTimestep], alone);
  return predicted + (positive - without) * number(parts, kSkipScale);
}

Tensor TextToImage::decode(const Tensor& latents, int64_t tile) const {
  const int64_t side = tile / model_.latents().factor;
  if (tile == 0 || (latents.dim(1) <= side && latents.dim(2) <= side)) return model_.decode(latents);
  const auto strip = [&](int64_t top, int64_t bottom) {
    const Tensor rows = slice(latents, 1, top, bottom);
    return in_tiles(2, latents.dim(2), side, model_.latents().factor, [&](int64_t left, int64_t right) {
      return model_.decode(contiguous(slice(rows, 2, left, right)));
    });
  };
  return in_tiles(1, latents.dim(1), side, model_.latents().factor, strip);
}

TextToImage::Pending::Pending(const Tensor& pixels)
    : height_(pixels.dim(1)),
      width_(pixels.dim(2)),
      values_(pixels.memory().read_later(pixels.view().data, size_t(pixels.numel()) * sizeof(float))) {}

Image TextToImage::Pending::wait() const {
  const float* const values = static_cast<const float*>(values_->data());
  return values_to_image({values, size_t(height_ * width_ * 3)}, height_, width_);
}

std::vector<TextToImage::Pending> TextToImage::draw(const Batch& batch, const OnStep& on_step) {
  const Tensor latents = denoise(batch, noise(batch), on_step);
  std::vector<Pending> pictures;
  for (int64_t i = 0; i < latents.dim(0); ++i) {  // one by one, since a VAE takes more memory than a denoiser
    const Arena arena(model_.memory());           // which steps and decoding take in turn
    pictures.emplace_back(contiguous(decode(slice(latents, 0, i, i + 1), batch.front().tile)));
  }
  return pictures;
}

std::vector<Image> TextToImage::operator()(const Batch& batch, const OnStep& on_step) {
  std::vector<Image> images;
  for (const Pending& picture : draw(batch, on_step)) images.push_back(picture.wait());
  return images;
}

Image TextToImage::operator()(const ImageRequest& request, const OnStep& on_step) {
  return (*this)(Batch{request}, on_step).front();
}

}  // namespace wick
