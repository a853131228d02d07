#include "wick/train/task.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "wick/io/count.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/train/faults.h"
#include "wick/train/latent_cache.h"
#include "wick/train/lora_metadata.h"
#include "wick/train/model_folder.h"
#include "wick/train/text_task.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeightFile = "diffusion_pytorch_model.safetensors";

// Where a task runs and what it is made of: a data set, or in an outline blank pictures.
struct Source {
  Backend& backend;
  const Dataset* dataset = nullptr;
  BucketOptions buckets = {};
  Progress progress = {};
  Size blank = {};  // used where there is no data set

  bool outline() const { return dataset == nullptr; }
};

// The UNet learns to find noise; what of it is trained is left open.
class DenoisingTask : public Task {
 public:
  DenoisingTask(const TrainConfig& config, const fs::path& model, const BucketOptions& buckets)
      : config_(config), model_(model), buckets_(buckets), schedule_(NoiseSchedule::read(model / "scheduler")) {}

  Batches& batches() override { return data_->batches(); }

  std::vector<NamedTensor> next_batch(TrainRng& rng) override {
    const NoisedBatch batch = noised(schedule_, data_ ? data_->next(rng) : blank_, rng);
    std::vector<NamedTensor> inputs{{"the batch's noised latents", batch.sample},
                                    {"the noise", batch.noise},
                                    {"the timesteps", batch.timesteps},
                                    {"the batch's sizes", batch.time_ids}};
    if (batch.ids)
      inputs.insert(inputs.end(), {{"the batch's tokens", batch.ids}, {"the batch's tokens", batch.ids_2}});
    else
      inputs.insert(inputs.end(),
                    {{"the batch's text states", batch.text.context}, {"the batch's pooled text", batch.text.pooled}});
    return inputs;
  }

  Tensor loss(const std::vector<NamedTensor>& in) override {
    NoisedBatch batch{.sample = in[0].value, .noise = in[1].value, .timesteps = in[2].value, .time_ids = in[3].value};
    if (in[4].value.dtype() == DType::i64)
      batch.ids = in[4].value, batch.ids_2 = in[5].value;
    else
      batch.text = {in[4].value, in[5].value};
    return noise_prediction_loss(*sdxl_, batch);
  }

 protected:
  // The VAE, and text encoders that are frozen, are needed for the cache only: they go before the UNet comes.
  void load(SdxlOptions options, const Source& source) {
    options.dtype = config_.dtype;
    options.backend = &source.backend;
    options.checkpointing = config_.gradient_checkpointing;
    options.unet = options.vae_decoder = false;
    options.outline = source.outline();
    sdxl_.emplace(Sdxl::load(model_, options));
    const bool encode_text = !(options.adapter && options.adapter->covers("text_encoder"));
    encode(source, encode_text);
    sdxl_->vae_encoder.reset();
    if (encode_text) {
      sdxl_->text_encoder.reset();
      sdxl_->text_encoder_2.reset();
    }
    sdxl_->memory.trim();
    sdxl_->load_unet(model_, options);
  }

  void encode(const Source& source, bool encode_text) {
    if (source.outline()) {
      blank_ = blank_batch(*sdxl_, source.blank, config_.batch_size, encode_text);
      return;
    }
    const auto report = [&](size_t done, size_t total) { source.progress("Encoding pictures", done, total); };
    data_.emplace(*sdxl_, model_, *source.dataset,
                  LatentCacheOptions{.batch_size = config_.batch_size,
                                     .seed = uint64_t(config_.seed),
                                     .caption_dropout = config_.caption_dropout,
                                     .encode_text = encode_text,
                                     .progress = report});
  }

  TrainConfig config_;
  fs::path model_;
  BucketOptions buckets_;
  NoiseSchedule schedule_;
  std::optional<Sdxl> sdxl_;
  std::optional<LatentCache> data_;
  Batch blank_;  // in an outline
};

class LoraTask final : public DenoisingTask {
 public:
  LoraTask(const TrainConfig& config, const fs::path& model, const Source& source)
      : DenoisingTask(config, model, source.buckets),
        session_(LoraSession::begin(config)),
        lora_({.rank = int(config.rank),
               .alpha = float(config.alpha),
               .targets = config.targets.empty() ? sdxl_default_targets() : config.targets,
               .seed = uint64_t(config.seed),
               .dropout = float(config.lora_dropout)},
              sdxl_module_names(UNetConfig::read(model / "unet"))) {
    load({.adapter = &lora_}, source);
  }

  std::vector<Parameter> parameters() const override { return lora_.parameters(); }

  std::vector<NamedTensor> next_batch(TrainRng& rng) override {
    lora_.set_draw(int64_t(rng.dropout.reserve(1)));
    return DenoisingTask::next_batch(rng);
  }

  fs::path save(const fs::path& stem, int64_t step) override {
    const fs::path file = stem.string() + ".safetensors";
    const LoraRun run{.config = config_,
                      .dataset = data_->dataset(),
                      .buckets = buckets_,
                      .session = session_,
                      .step = step,
                      .batches_per_epoch = batches().batches_per_epoch()};
    const std::map<std::string, Tensor> tensors = lora_.tensors(config_.save_dtype);
    save_safetensors(file, tensors, sdxl_lora_metadata(run, tensors));
    return file;
  }

  std::string describe() const override {
    return fmt::format("A LoRA of rank {} on {}, {}", config_.rank, count_of(lora_.module_count(), "module"),
                       parameter_count(parameters()));
  }

 private:
  LoraSession session_;
  Adapter lora_;
};

class UNetTask final : public DenoisingTask {
 public:
  UNetTask(const TrainConfig& config, const fs::path& model, const Source& source)
      : DenoisingTask(config, model, source.buckets) {
    load({.train_unet = true}, source);
  }

  std::vector<Parameter> parameters() const override { return sdxl_->unet_weights->parameters(); }

  fs::path save(const fs::path& stem, int64_t) override {
    write_model_folder(model_, stem, "unet", [&](const fs::path& folder) {
      sdxl_->unet_weights->save(folder / kWeightFile, config_.save_dtype);
    });
    return stem;
  }

  std::string describe() const override { return fmt::format("The whole UNet, {}", parameter_count(parameters())); }
};

class VaeTask final : public Task {
 public:
  VaeTask(const TrainConfig& config, const fs::path& model, const Source& source)
      : config_(config),
        model_(model),
        memory_(source.backend.memory()),
        weights_(open(model / "vae", {.trainable = true, .place = Residence::on(source.backend, config.dtype)},
                      source.outline())),
        encoder_(Scope(weights_, "vae"), VaeConfig::read(model / "vae")),
        decoder_(Scope(weights_, "vae"), VaeConfig::read(model / "vae")),
        blank_{config.batch_size, source.blank.height, source.blank.width, 3} {
    if (source.outline()) return;
    sampler_.emplace(source.dataset->shown(), config.batch_size, uint64_t(config.seed));
    Faults faults;
    for (const Example& example : source.dataset->examples) {
      Image& picture = pictures_.emplace_back();
      faults.collect([&] { picture = load_image(example); });
      source.progress("Reading pictures", pictures_.size(), source.dataset->examples.size());
    }
    faults.check(source.dataset->folder.string());
  }

  std::vector<Parameter> parameters() const override { return weights_.parameters(); }
  Batches& batches() override { return *sampler_; }

  std::vector<NamedTensor> next_batch(TrainRng& rng) override {
    const Tensor pictures = sampler_ ? stacked(sampler_->next()) : zeros(blank_, DType::f32, memory_);
    const VaeConfig vae = VaeConfig::read(model_ / "vae");
    const Shape latent{pictures.dim(0), pictures.dim(1) / vae.factor(), pictures.dim(2) / vae.factor(),
                       vae.latent_channels};
    return {{"the batch's pictures", pictures}, {"the noise", random_normal(latent, rng.latent, pictures.memory())}};
  }

  Tensor loss(const std::vector<NamedTensor>& in) override {
    return autoencoder_loss(encoder_, decoder_, in[0].value, float(config_.kl_weight), in[1].value);
  }

  fs::path save(const fs::path& stem, int64_t) override {
    write_model_folder(model_, stem, "vae", [&](const fs::path& folder) {
      weights_.save(folder / kWeightFile, config_.save_dtype);
      nlohmann::json vae = read_json(model_ / "vae" / "config.json");
      vae["scaling_factor"] = 1 / latent_deviation();
      write_file_atomically(folder / "config.json", to_text(std::move(vae)));
    });
    return stem;
  }

  std::string describe() const override { return fmt::format("The VAE, {}", parameter_count(parameters())); }

 private:
  static Weights open(const fs::path& folder, const WeightsOptions& options, bool outline) {
    return outline ? Weights::outline(options) : Weights::open(folder, options);
  }

  Tensor stacked(const std::vector<size_t>& examples) const {
    std::vector<Tensor> images;
    for (const size_t i : examples) {
      const Tensor image = image_to_tensor(pictures_[i]);
      images.push_back(reshape(image, {1, image.dim(0), image.dim(1), image.dim(2)}));
    }
    return cat(images, 0).to(memory_);
  }

  // Of all latents of the dataset: their inverse brings latents to unit variance, which diffusion expects.
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
  fs::path model_;
  Memory& memory_;
  Weights weights_;
  VaeEncoder encoder_;
  VaeDecoder decoder_;
  Shape blank_;  // of a batch in an outline
  std::optional<BatchSampler> sampler_;
  std::vector<Image> pictures_;
};

std::unique_ptr<Task> task_of(const TrainConfig& config, const fs::path& model, const Source& source) {
  switch (config.train) {
    case TrainMode::lora:
      return std::make_unique<LoraTask>(config, model, source);
    case TrainMode::full:
      return std::make_unique<UNetTask>(config, model, source);
    case TrainMode::vae:
      return std::make_unique<VaeTask>(config, model, source);
  }
  fail("--train: unknown mode");
}

}  // namespace

std::string parameter_count(const std::vector<Parameter>& parameters) {
  int64_t count = 0;
  for (const Parameter& p : parameters) count += p.value.numel();
  return count < 1'000'000 ? fmt::format("{}", count_of(count, "parameter"))
                           : fmt::format("{:.2f} M parameters", double(count) / 1e6);
}

std::unique_ptr<Task> make_task(const TrainConfig& config, const fs::path& model, Backend& backend,
                                const Dataset& dataset, const BucketOptions& buckets, const Progress& progress) {
  return task_of(config, model, {.backend = backend, .dataset = &dataset, .buckets = buckets, .progress = progress});
}

std::unique_ptr<Task> outline_task(const TrainConfig& config, const fs::path& model, Backend& backend, Size size) {
  if (LlamaConfig::is_here(model)) return outline_text_task(config, model, backend, size.width);
  return task_of(config, model, {.backend = backend, .blank = size});
}

}  // namespace wick
