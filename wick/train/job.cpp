#include "wick/train/job.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "wick/io/count.h"
#include "wick/nn/peft.h"
#include "wick/pipelines/model_folder.h"
#include "wick/text/foreign_syntax.h"
#include "wick/train/latent_cache.h"
#include "wick/train/picture_settings.h"
#include "wick/train/previews.h"
#include "wick/train/text_task.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

std::vector<ForeignSyntax> foreign_in(const std::string& text) {
  std::vector<ForeignSyntax> found = foreign_syntax(text);
  if (text.find(kTrigger) != text.npos) found.push_back({ForeignKind::trigger, std::string(kTrigger)});
  return found;
}

// How many captions hold what other programs interpret, with an example; empty if none does.
std::string foreign_captions(const Dataset& dataset) {
  size_t count = 0;
  std::string example;
  for (const Example& picture : dataset.at().examples)
    for (const std::string& caption : picture.captions) {
      const CaptionOptions& options = dataset.subset_of(picture).captions;
      const std::vector<ForeignSyntax> found =
          foreign_in(options.wildcards ? caption_variant(caption, options, 0, 0) : caption);
      if (found.empty() || ++count > 1) continue;
      const fs::path& file = picture.caption_file.empty() ? picture.image : picture.caption_file;
      example = fmt::format("{} in {}", read_as_words(found), file.filename().string());
    }
  if (count == 0) return {};
  return fmt::format("{} {} what other programs interpret: {}.", count_of(count, "caption"),
                     count == 1 ? "holds" : "hold", example);
}

// The same of the prompts of previews.
std::string foreign_prompts(const TrainConfig& config) {
  for (const SamplePrompt& prompt : sample_prompts(config))
    if (const auto found = foreign_in(prompt.prompt + "\n" + prompt.negative.value_or("")); !found.empty())
      return fmt::format("{}: {}.", prompt.where, read_as_words(found));
  return {};
}

// Their flags and keys that no preview heeds, with the first prompt that has one.
std::string idle_flags(const TrainConfig& config) {
  std::string where;
  std::vector<std::string> flags;
  for (const SamplePrompt& prompt : sample_prompts(config))
    for (const std::string& flag : prompt.idle) {
      if (where.empty()) where = prompt.where;
      if (std::ranges::find(flags, flag) == flags.end()) flags.push_back(flag);
    }
  if (flags.empty()) return {};
  return fmt::format("{}: {}: no preview of this model heeds {}.", where, fmt::join(flags, ", "),
                     flags.size() == 1 ? "it" : "them");
}

class PictureJob final : public Job {
 public:
  PictureJob(const TrainConfig& config, const Checkpoint& checkpoint, const Progress& progress)
      : config_(config), checkpoint_(checkpoint), model_(open_diffusion(checkpoint, reading_options(config))) {
    check_kind(config, ModelKind::pictures);
    check_settings(config, *model_);
    PicturePreviews(config, *model_);  // are understood
    dataset_ = Dataset::scan(picture_sources(config, model_->latents()), progress);
    check_dataset(config, dataset_);
    hold_back(progress);
    const int64_t largest = model_->latents().largest;
    for (const Dataset* pictures : {&dataset_, &held_back_})
      for (const Example& e : pictures->examples)
        check(std::max(e.placement.bucket.width, e.placement.bucket.height) <= largest,
              "{}: its bucket is of {}x{} pixels, and this model's pictures have at most {} a side; lower --resolution",
              e.image.string(), e.placement.bucket.width, e.placement.bucket.height, largest);
  }

  Size largest() const override { return largest_bucket().first; }

  TrainConfig planned(TrainConfig config) const override {
    config.batch_size = largest_bucket().second;
    config.masked_loss = dataset_.has_weights();
    config.random_crop = dataset_.is_augmented_endlessly();
    config.color_aug = false;  // for which the same is planned
    return config;
  }

  int64_t batch_size() const override {
    return std::ranges::max(dataset_.batch_buckets(config_.batch_size), {}, &BatchBucket::batch_size).batch_size;
  }

  bool validates() const override { return !held_back_.examples.empty(); }
  std::string data_hash() const override { return dataset_.sha256; }
  const std::vector<DataFile>& data_files() const override { return dataset_.files; }
  std::string_view item() const override { return "picture"; }

  std::string describe() const override {
    const size_t count = dataset_.at().examples.size(), shown = dataset_.shown_count();
    return fmt::format("{}{} in {}", count_of(count, "picture"),
                       shown == count ? "" : fmt::format(", shown {} times an epoch,", shown),
                       count_of(dataset_.buckets().size(), "bucket"));
  }

  std::vector<std::string> remarks() const override {
    std::vector<std::string> all = dataset_.remarks;
    if (!held_back_.examples.empty())
      all.push_back(fmt::format("Validation: {}.", count_of(held_back_.at().examples.size(), "picture")));
    for (const std::string& remark : held_back_.remarks) all.push_back("Validation: " + remark);
    if (const std::string more = repeated_in_words(); !more.empty()) all.push_back(more);
    if (config_.train == TrainMode::vae) return all;
    for (const std::string& remark : {foreign_captions(dataset_), foreign_prompts(config_), idle_flags(config_)})
      if (!remark.empty()) all.push_back(remark);
    for (const std::string& remark : model_->remarks()) all.push_back(remark);
    if (const std::string remark = model_->training_remark(); !remark.empty()) all.push_back(remark);
    if (const std::string cut = cut_captions(dataset_, *model_); !cut.empty()) all.push_back(cut + ".");
    return all;
  }

  fs::path last_file(const fs::path& stem) const override {
    return config_.train == TrainMode::lora ? fs::path(stem.string() + ".safetensors") : stem / kDiffusersLast;
  }

  uint64_t copied_bytes() const override {
    if (config_.train == TrainMode::lora) return 0;
    return wick::copied_bytes(checkpoint_, config_.train == TrainMode::full ? model_->denoiser() : "vae");
  }

  void set_memory(const TrainConfig& config) override { config_ = config; }

  std::unique_ptr<Task> load(Backend& backend, const BlockSchedule& block_schedule, const Progress& progress,
                             Ranks& ranks) const override {
    return make_task(config_, checkpoint_, backend,
                     {.dataset = &dataset_,
                      .held_back = validates() ? &held_back_ : nullptr,
                      .order = order(),
                      .ranks = &ranks,
                      .progress = progress},
                     block_schedule);
  }

 protected:
  int64_t steps_of_epochs(int64_t epochs) const override { return epochs * batches().steps_per_epoch(); }
  int64_t repeated() const override { return batches().repeated(); }

 private:
  void hold_back(const Progress& progress) {
    PictureSources sources = held_back_sources(config_, model_->latents());
    if (sources.groups.empty()) return;
    held_back_ = Dataset::scan(std::move(sources), progress);
    const auto most = size_t(config_.max_validation_steps);
    if (most > 0 && held_back_.examples.size() > most) held_back_.examples.resize(most);
  }

  BatchSampler batches() const { return {dataset_.batch_buckets(config_.batch_size), uint64_t(config_.seed), order()}; }

  // The size with the most pixels in a batch, and the batch's size.
  std::pair<Size, int64_t> largest_bucket() const {
    std::pair<Size, int64_t> largest{};
    const auto pixels = [](Size size, int64_t count) { return size.width * size.height * count; };
    const auto look_at = [&](Size size, int64_t count) {
      if (pixels(size, count) > pixels(largest.first, largest.second)) largest = {size, count};
    };
    for (const BatchBucket& bucket : dataset_.batch_buckets(config_.batch_size))
      look_at(dataset_.examples[bucket.examples.front()].placement.bucket, bucket.batch_size);
    for (const auto& [size, examples] : held_back_.buckets()) look_at(size, 1);
    return largest;
  }

  TrainConfig config_;
  Checkpoint checkpoint_;
  std::unique_ptr<Diffusion> model_;  // its configs and tokenizers alone
  Dataset dataset_, held_back_;
};

class TextJob final : public Job {
 public:
  TextJob(const TrainConfig& config, const fs::path& model, const Progress& progress) : config_(config), model_(model) {
    check_kind(config, ModelKind::text);
    const TextEncoder encoder(model, text_reading(config));
    const int64_t length = sequence_length(config, LlamaConfig::read(model));
    train_ = TextDataset::read(config.dataset, encoder, length, config.long_documents, progress);
    if (!config.val.empty())
      validation_ = TextDataset::read(config.val, encoder, length, config.long_documents, progress);
    // All of a small data set may fit in less than a row.
    row_length_ = config.no_packing ? 0 : std::min(length, train_.tokens);
    has_end_ = encoder.has_end();
    if (train_.conversations > 0)
      chat_template_ = encoder.chat_template()->jinja(), tool_use_ = encoder.chat_template()->tool_use();
    if (!config.sample_prompts.empty()) TextPreviews(config, model, train_.conversations > 0);  // are understood
  }

  Size largest() const override {
    return {.width = std::max({row_length_, train_.longest, validation_.longest}), .height = 1};
  }
  int64_t batch_size() const override { return config_.batch_size; }
  bool validates() const override { return !config_.val.empty(); }
  std::string data_hash() const override { return train_.sha256; }
  const std::vector<DataFile>& data_files() const override { return train_.files; }
  std::string_view item() const override { return "row"; }

  std::string describe() const override {
    const int64_t rows = batches().rows_per_epoch();
    if (row_length_ == 0)
      return fmt::format("{} of a document each, up to {}", count_of(rows, "row"), count_of(train_.longest, "token"));
    return fmt::format("{} of {}, {:.1f} % of them padding", count_of(rows, "row"), count_of(row_length_, "token"),
                       100 - 100 * double(train_.tokens) / double(rows * row_length_));
  }

  std::vector<std::string> remarks() const override {
    std::vector<std::string> all{"Text: " + train_.describe() + "."};
    if (!config_.val.empty()) all.push_back("Validation: " + validation_.describe() + ".");
    if (const std::string more = repeated_in_words(); !more.empty()) all.push_back(more);
    if (!has_end_) all.push_back("The tokenizer has no token that ends a text: texts and completions end without one.");
    return all;
  }

  fs::path last_file(const fs::path& stem) const override {
    return stem / (config_.train == TrainMode::lora ? kPeftLast : kTransformersLast);
  }

  void set_memory(const TrainConfig& config) override { config_ = config; }
  std::string chat_template() const override { return chat_template_ + tool_use_; }
  bool tells_time() const override { return chat_template().find("strftime_now") != std::string::npos; }

  std::unique_ptr<Task> load(Backend& backend, const BlockSchedule& block_schedule, const Progress&,
                             Ranks&) const override {
    return make_text_task(config_, model_, backend,
                          {.train = &train_,
                           .validation = config_.val.empty() ? nullptr : &validation_,
                           .row_length = row_length_,
                           .order = order(),
                           .chat_template = tool_use_.empty() ? chat_template_ : ""},
                          block_schedule);
  }

 protected:
  int64_t steps_of_epochs(int64_t epochs) const override {
    PackedBatches all = batches();
    int64_t count = 0;
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      all.seek(epoch, 0);
      count += all.steps_per_epoch();
    }
    return count;
  }
  int64_t repeated() const override { return batches().repeated(); }

 private:
  PackedBatches batches() const {
    return {train_.lengths(), row_length_, config_.batch_size, uint64_t(config_.seed), order()};
  }

  TrainConfig config_;
  fs::path model_;
  TextDataset train_, validation_;
  int64_t row_length_ = 0;
  std::string chat_template_, tool_use_;
  bool has_end_ = true;
};

}  // namespace

int64_t Job::steps(int64_t epochs) const {
  const int64_t count = steps_of_epochs(epochs);
  return order_.is_older ? (count + order_.batches - 1) / order_.batches : count;
}

std::string Job::repeated_in_words() const {
  if (repeated() == 0) return {};
  return fmt::format("Each step is of one bucket: {} an epoch {} repeated to fill a bucket's last step.",
                     count_of(repeated(), item()), repeated() == 1 ? "is" : "are");
}

std::unique_ptr<Job> open_job(const TrainConfig& config, const Checkpoint& model, const Progress& progress) {
  if (kind_of(model) == ModelKind::text) return std::make_unique<TextJob>(config, model.path(), progress);
  return std::make_unique<PictureJob>(config, model, progress);
}

}  // namespace wick
