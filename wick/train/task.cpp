#include "wick/train/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "wick/backend/registry.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/models/comfy_names.h"
#include "wick/nn/named_seed.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/model_folder.h"
#include "wick/train/latent_cache.h"
#include "wick/train/look_ahead.h"
#include "wick/train/lora_metadata.h"
#include "wick/train/picture_settings.h"
#include "wick/train/text_task.h"
#include "wick/train/trained.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeightFile = "diffusion_pytorch_model.safetensors";

Trained trained_of(const TrainConfig& config, const Diffusion& model) {
  if (config.train == TrainMode::full) return {config, "The whole " + model.denoiser_in_words()};
  LoraFormat lora = model.lora();
  check_usage(config.conv_rank == 0 || !lora.conv_targets.empty(),
              "--conv-rank: {} has no convolutions to train; expected none", config.model);
  if (config.conv_rank > 0)
    lora.default_targets.insert(lora.default_targets.end(), lora.conv_targets.begin(), lora.conv_targets.end());
  return {config, lora.names, lora.default_targets, /*magnitudes_of_inputs=*/true};
}

// The denoiser learns to predict its process's target.
class DiffusionTask final : public Task {
 public:
  DiffusionTask(const TrainConfig& config, const Checkpoint& checkpoint, Backend& backend, const PictureData& data,
                const BlockSchedule& block_schedule)
      : config_(config),
        checkpoint_(checkpoint),
        activations_(Residence::on(backend, config.dtype).activations),
        on_device_(backend.computes_in(DType::bf16) == DType::bf16),
        session_(LoraSession::begin(config)),
        objective_(objective(config)),
        order_(data.order),
        model_(open_diffusion(checkpoint, reading_options(config))),
        trained_(trained_of(config, *model_)),
        previews_(config, *model_) {
    load(backend, data, block_schedule);
  }

  std::vector<Parameter> parameters() const override { return trained_.parameters(); }
  Batches& batches() override { return data_->batches(); }

  NamedTensors next_batch(TrainRng& rng) override {
    if (data_) return next_of(*data_, *ahead_, rng, objective_);
    if (encodes_as_they_come()) encode_blank(*model_, blank_);
    return noised_with(blank_, blank_ahead(), rng, objective_);
  }

  // Each picture alone, several times, always with the same latents, times and noise: the mean of squares, whatever is
  // trained by.
  std::optional<double> validation_loss() override {
    constexpr int64_t kEpochs = 4;
    if (!held_back_) return {};
    TrainRng rng(validation_seed());
    held_back_->batches().seek(0, 0);
    const int64_t count = kEpochs * held_back_->batches().steps_per_epoch();
    const Objective plain{.times = objective_.times};
    double sum = 0;
    const PausedDropout paused(trained_);
    for (int64_t i = 0; i < count; ++i)
      sum += double(denoising_loss(*model_, next_of(*held_back_, *held_back_ahead_, rng, plain)).item());
    return sum / double(count);
  }

  Preview preview(size_t index, const OnPreviewStep& on_step) override {
    const PausedDropout paused(trained_);
    return previews_.draw(index, on_step);
  }
  void outline_previews() override { previews_.outline(); }

  Tensor loss(const NamedTensors& batch) override { return denoising_loss(*model_, batch, objective_.type); }

  bool limit_parameters() const override { return trained_.limit(); }

  fs::path save(const fs::path& stem, int64_t step) override {
    const auto write_lora = [&](const std::map<std::string, Tensor>& tensors) {
      const fs::path file = stem.string() + ".safetensors";
      const LoraRun run{.config = config_,
                        .dataset = data_->dataset(),
                        .session = session_,
                        .step = step,
                        .batches_per_epoch = batches().steps_per_epoch() * (order_.is_older ? 1 : order_.batches),
                        .activations = activations_,
                        .family = model_->lora().metadata,
                        .flow = flow_run()};
      save_safetensors(file, tensors, lora_metadata(run, tensors));
      return file;
    };
    return trained_.save(config_.save_dtype, write_lora, [&](const Weights& weights) {
      write_model_folder(checkpoint_, stem, {model_->denoiser()}, [&](const std::string&, const fs::path& folder) {
        weights.save(folder / kWeightFile, config_.save_dtype);
      });
      return stem;
    });
  }

  std::vector<std::string> remarks() const override {
    std::vector<std::string> all = cache_ ? cache_->remarks() : std::vector<std::string>();
    if (data_ && !data_->remark().empty()) all.push_back(data_->remark());
    return all;
  }

  std::string describe() const override {
    const Adapter* lora = trained_.adapter();
    const std::string quantized = model_->denoiser_weights().describe_quantized();
    return trained_.describe() + (lora ? "; " + comfyui_count(lora->written_names()) : "") +
           (quantized.empty() ? "" : "; base in " + quantized);
  }

  std::string about_weights() const override {
    const bool stay = trained_.adapter() && model_->process().is_flow() && model_->parts_ahead().empty();
    return on_device_ && stay ? "modulations' among them, which cannot be made ahead: their inputs are trained" : "";
  }

 private:
  uint64_t validation_seed() const { return named_seed(uint64_t(config_.seed), "validation"); }

  NamedTensors next_of(LatentCache& data, LookAhead& ahead, TrainRng& rng, const Objective& objective) const {
    const NamedTensors rows = ahead.next(rng);
    const Batch batch = data.next(rng);
    trained_.begin_batch(rng, batch.number, batch.latents.dim(0));
    return noised_with(batch, rows, rng, objective);
  }

  NamedTensors noised_with(Batch batch, const NamedTensors& ahead, TrainRng& rng, const Objective& objective) const {
    for (const auto& [name, rows] : ahead) batch.conditioning.add(name, rows.to(model_->memory()));
    return noised(model_->process(), batch, rng, objective);
  }

  std::optional<FlowRun> flow_run() const {
    const Process& process = model_->process();
    if (!process.is_flow()) return {};
    FlowRun flow{.times = objective_.times,
                 .t5_tokens = model_->t5_tokens(),
                 .is_guided = model_->drawing_defaults().guidance.has_value()};
    if (!flow.times.shift) flow.times.shift = process.fixed_shift();
    return flow;
  }

  // Text encoders that are frozen and the VAE are needed for the cache only: each goes before the next comes.
  void load(Backend& backend, const PictureData& data, const BlockSchedule& block_schedule) {
    const DiffusionOptions options{.dtype = config_.dtype,
                                   .quantization = quantization(config_),
                                   .adapter = trained_.adapter(),
                                   .trainable = !trained_.adapter(),
                                   .backend = &backend,
                                   .block_schedule = block_schedule,
                                   .stream_text_encoder = config_.stream_text_encoder,
                                   .outline = data.outline()};
    model_->load(options, {});
    bool has_text_encoders = false, has_vae = false;
    const auto before_captions = [&] {
      if (!std::exchange(has_text_encoders, true)) model_->load(options, {DiffusionPart::text_encoders});
    };
    const auto before_pictures = [&] {
      if (std::exchange(has_vae, true)) return;
      model_->drop_encoders();
      model_->load(options, {DiffusionPart::vae_encoder});
    };
    open_cache(backend, data);
    for (const Dataset* pictures : {data.dataset, data.held_back})
      if (pictures) check_decodable(*pictures, cache_ ? &*cache_ : nullptr, data.progress);
    if (data.outline() || may_train_text()) before_captions();
    encode(data, before_captions, before_pictures);
    if (!encodes_as_they_come()) model_->drop_encoders();
    DiffusionParts parts{DiffusionPart::denoiser};
    if (!previews_.empty()) parts.push_back(DiffusionPart::vae_decoder);
    model_->load(options, parts);
    if (data_) ahead_.emplace(*model_, *data_, objective_.times);
    if (held_back_) held_back_ahead_.emplace(*model_, *held_back_, objective_.times);
    if (!trained_.adapter()) trained_.set_weights(model_->denoiser_weights());
  }

  // Pictures that are augmented endlessly, for which the VAE stays.
  bool encodes_as_they_come() const {
    return data_ ? data_->dataset().is_augmented_endlessly() : config_.color_aug || config_.random_crop;
  }

  NamedTensors blank_ahead() const {
    NamedTensors parts;
    for (const std::string& name : model_->parts_ahead()) parts.add(name, blank_.conditioning[name]);
    if (parts.size() == 0) return {};
    return model_->ahead(zeros({blank_.latents.dim(0)}, DType::f32, model_->memory()), parts);
  }

  // Before the text encoders are loaded, for which no module is known: unless all targets are the denoiser's.
  bool may_train_text() const {
    const std::vector<std::string> targets = config_.targets.empty() ? model_->lora().default_targets : config_.targets;
    return trained_.adapter() && std::ranges::any_of(targets, [&](const std::string& target) {
             return !target.starts_with('-') && !target.starts_with(model_->denoiser() + ".");
           });
  }

  bool trains_text() const { return trained_.adapter() && trained_.adapter()->covers("text_encoder"); }

  // Encodings follow from the model, its dtype and the device's arithmetic, and those of text from how T5 reads it too.
  void open_cache(Backend& backend, const PictureData& data) {
    if (data.outline() || config_.cache == "none" || (config_.cache.empty() && config_.output.empty())) return;
    const fs::path folder = config_.cache.empty() ? fs::path(config_.output) / "cache" : fs::path(config_.cache);
    const std::string device(backend.memory().on_host() ? "cpu" : architecture_of(backend.name()));
    const int64_t chunks = reading_options(config_).clip_chunks;
    cache_.emplace(folder,
                   fmt::format("model {}, {}, {}{}, T5 {} {}{}", checkpoint_.fingerprint(), name_of(config_.dtype),
                               device, config_.tf32 ? " with tf32" : "", model_->t5_tokens(), config_.t5_mask,
                               chunks > 1 ? fmt::format(", CLIP in {} chunks", chunks) : ""),
                   [&backend]() -> Memory& { return backend.memory(); });
  }

  void encode(const PictureData& data, const std::function<void()>& before_captions,
              const std::function<void()>& before_pictures) {
    if (data.outline()) {
      if (!trains_text()) previews_.encode(nullptr, before_captions);
      blank_ = blank_batch(*model_, data.blank, config_.batch_size, before_pictures);
      Shape weighed = blank_.latents.shape();
      weighed[3] = 1;
      if (config_.masked_loss) blank_.weights = zeros(weighed, DType::f32, model_->memory());
      return;
    }
    const auto report = [&](size_t done, size_t total) { data.progress("Encoding pictures", done, total); };
    LatentCacheOptions options{.batch_size = 1,
                               .order = {.is_older = data.order.is_older},
                               .seed = validation_seed(),
                               .guidance = float(config_.train_guidance),
                               .progress = report,
                               .before_captions = before_captions,
                               .before_pictures = before_pictures,
                               .caption_cache = cache_ && !trains_text() ? &*cache_ : nullptr,
                               .picture_cache = cache_ ? &*cache_ : nullptr,
                               .ranks = data.ranks};
    // All texts come before all pictures.
    options.between = [&, options] {
      if (!trains_text()) previews_.encode(options.caption_cache, before_captions);
      if (data.held_back) held_back_.emplace(*model_, *data.held_back, options);
    };
    options.batch_size = config_.batch_size;
    options.order = data.order;
    options.seed = uint64_t(config_.seed);
    data_.emplace(*model_, *data.dataset, options);
  }

  TrainConfig config_;
  Checkpoint checkpoint_;
  DType activations_;
  bool on_device_;
  LoraSession session_;
  Objective objective_;
  StepOrder order_;
  std::unique_ptr<Diffusion> model_;
  Trained trained_;
  PicturePreviews previews_;
  std::optional<EncodingCache> cache_;
  std::optional<LatentCache> data_, held_back_;  // the latter of --val
  std::optional<LookAhead> ahead_, held_back_ahead_;
  Batch blank_;  // in an outline
};

class VaeTask final : public Task {
 public:
  VaeTask(const TrainConfig& config, const Checkpoint& model, Backend& backend, const PictureData& data)
      : config_(config),
        model_(model),
        memory_(backend.memory()),
        vae_(VaeConfig::read(model.component("vae"))),
        trained_(config, "The VAE"),
        weights_(open(model.component("vae"), {.trainable = true, .place = Residence::on(backend, config.dtype)},
                      data.outline())),
        encoder_(Scope(weights_, "vae"), vae_),
        decoder_(Scope(weights_, "vae"), vae_),
        blank_{config.batch_size, data.blank.height, data.blank.width, 3} {
    trained_.set_weights(weights_);
    if (data.outline()) return;
    sampler_.emplace(data.dataset->batch_buckets(config.batch_size), uint64_t(config.seed), data.order);
    Faults faults;
    for (const Example& example : data.dataset->examples) {
      Image& picture = pictures_.emplace_back();
      faults.collect([&] { picture = load_image(example); });
      data.progress("Reading pictures", pictures_.size(), data.dataset->examples.size());
    }
    faults.check(data.dataset->sources.path.string());
  }

  std::vector<Parameter> parameters() const override { return trained_.parameters(); }
  Batches& batches() override { return *sampler_; }

  NamedTensors next_batch(TrainRng& rng) override {
    const auto [items, number] = sampler_ ? sampler_->next() : SampledBatch<size_t>{};
    const Tensor pictures = sampler_ ? stacked(items) : zeros(blank_, DType::f32, memory_);
    std::vector<Tensor> noise;
    rng.each_sample(number, pictures.dim(0), [&](int64_t count) {
      const Shape latent{count, pictures.dim(1) / vae_.factor(), pictures.dim(2) / vae_.factor(), vae_.latent_channels};
      noise.push_back(random_normal(latent, rng.latent, pictures.memory()));
    });
    return {{"pictures", pictures}, {"noise", cat(noise, 0)}};
  }

  Tensor loss(const NamedTensors& batch) override {
    return autoencoder_loss(encoder_, decoder_, batch["pictures"], float(config_.kl_weight), batch["noise"]);
  }

  fs::path save(const fs::path& stem, int64_t) override {
    return trained_.save(config_.save_dtype, {}, [&](const Weights& weights) {
      write_model_folder(model_, stem, {"vae"}, [&](const std::string&, const fs::path& folder) {
        weights.save(folder / kWeightFile, config_.save_dtype);
        nlohmann::json vae = read_json(model_.component("vae").config_file());
        vae["scaling_factor"] = 1 / latent_deviation();
        write_file_atomically(folder / "config.json", to_text(std::move(vae)));
      });
      return stem;
    });
  }

  std::string describe() const override { return trained_.describe(); }

 private:
  static Weights open(const Checkpoint& vae, const WeightsOptions& options, bool outline) {
    return outline ? Weights::outline(options) : vae.weights(options);
  }

  Tensor stacked(const std::vector<size_t>& examples) const {
    std::vector<Tensor> images;
    for (const size_t i : examples) {
      const Tensor image = image_to_tensor(pictures_[i]);
      images.push_back(reshape(image, {1, image.dim(0), image.dim(1), image.dim(2)}));
    }
    return cat(images, 0).to(memory_);
  }

  // The standard deviation of all latents of the dataset: divided by it they have the unit variance that diffusion
  // expects.
  double latent_deviation() const {
    double sum = 0, squares = 0, count = 0;
    for (size_t i = 0; i < pictures_.size(); ++i)
      for (const float z : encoder_(stacked({i})).mean.to_vector()) {
        sum += double(z), squares += double(z) * double(z), count += 1;
      }
    const double deviation = std::sqrt(squares / count - (sum / count) * (sum / count));
    check(std::isfinite(deviation) && deviation > 0, "--train vae: the latents have the standard deviation {}",
          deviation);
    return deviation;
  }

  TrainConfig config_;
  Checkpoint model_;
  Memory& memory_;
  VaeConfig vae_;
  Trained trained_;
  Weights weights_;
  VaeEncoder encoder_;
  VaeDecoder decoder_;
  Shape blank_;  // of a batch in an outline
  std::optional<BatchSampler> sampler_;
  std::vector<Image> pictures_;
};

}  // namespace

Preview Task::preview(size_t, const OnPreviewStep&) {
  fail("--sample-prompts: expected none, this run has no previews");
}

std::unique_ptr<Task> make_task(const TrainConfig& config, const Checkpoint& model, Backend& backend,
                                const PictureData& data, const BlockSchedule& block_schedule) {
  if (config.train == TrainMode::vae) {
    if (!data.outline()) check_decodable(*data.dataset, nullptr, data.progress);
    return std::make_unique<VaeTask>(config, model, backend, data);
  }
  return std::make_unique<DiffusionTask>(config, model, backend, data, block_schedule);
}

std::unique_ptr<Task> outline_task(const TrainConfig& config, const Checkpoint& model, Backend& backend, Size size,
                                   const BlockSchedule& block_schedule) {
  if (kind_of(model) == ModelKind::text)
    return make_text_task(config, model.path(), backend, {.row_length = size.width}, block_schedule);
  return make_task(config, model, backend, {.blank = size}, block_schedule);
}

}  // namespace wick
