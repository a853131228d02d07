#include "wick/train/text_task.h"

#include <algorithm>
#include <map>
#include <utility>

#include "wick/io/gguf.h"
#include "wick/nn/peft.h"
#include "wick/pipelines/model_folder.h"
#include "wick/text/chat.h"
#include "wick/train/previews.h"
#include "wick/train/trained.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

Trained trained_of(const TrainConfig& config, const fs::path& model) {
  check_usage(config.adapter == AdapterKind::lora || config.adapter == AdapterKind::dora,
              "--adapter {}: is for models of pictures; a language model has lora and dora", name_of(config.adapter));
  if (config.train == TrainMode::lora)
    return {config, llama_module_names(), llama_default_targets(), /*magnitudes_of_inputs=*/false};
  check(config.train == TrainMode::full, "--train vae: {} is a language model, which has none", config.model);
  check(!GgufFile::is_gguf(model), "--train full: expected a transformers folder, found the GGUF file {}",
        model.string());
  return {config, std::string("The whole language model") + (config.from_scratch ? " from random weights" : "")};
}

// The dtype of the frozen model: by the settings, or for a GGUF file its own.
std::optional<DType> text_dtype(const TrainConfig& config, const fs::path& model) {
  if (const auto quantized = quantized_dtype(config)) {
    check_usage(config.dtype != DType::f16,
                "--quantize: a language model's other weights are bf16; expected it or --fp16, found both");
    return quantized;
  }
  if (GgufFile::is_gguf(model) && config.dtype == DType::f32) return {};
  return config.dtype;
}

// The model learns to continue text.
class TextTask final : public Task {
 public:
  TextTask(const TrainConfig& config, const fs::path& model, Backend& backend, const TextData& data,
           const BlockSchedule& block_schedule)
      : config_(config),
        model_(model),
        data_(data),
        trained_(trained_of(config, model)),
        llama_(load(backend, block_schedule)) {
    if (const Adapter* adapter = trained_.adapter())
      check(adapter->kind() == "LoRA" || adapter->kind() == "DoRA",
            "--from {}: is {}, and a language model's adapter is saved for PEFT; expected a LoRA or a DoRA",
            config.from, adapter->kind() == "adapter" ? "of several kinds" : "a " + adapter->kind());
    if (!trained_.adapter()) trained_.set_weights(llama_.weights());
    if (!config.sample_prompts.empty()) previews_.emplace(config, model, data.train && data.train->conversations > 0);
    if (data.train)
      batches_.emplace(data.train->lengths(), data.row_length, config.batch_size, uint64_t(config.seed), data.order);
  }

  std::vector<Parameter> parameters() const override { return trained_.parameters(); }
  Batches& batches() override { return *batches_; }

  // The loss of a step is the mean over all that counts in it, in whichever of its batches.
  NamedTensors next_batch(TrainRng& rng) override {
    if (!batches_) {
      trained_.begin_batch(rng);
      return inputs(blank());
    }
    const std::vector<TextDocument>& documents = data_.train->documents;
    const auto [rows, number] = batches_->next();
    trained_.begin_batch(rng, number, int64_t(rows.size()));
    const double weight = double(data_.order.batches) / double(counted(documents, batches_->step()));
    count_tokens();
    return inputs(pack(documents, rows, data_.row_length, float(weight), llama_.config(), memory()));
  }

  Tensor loss(const NamedTensors& batch) override {
    TokenPlan plan = *plan_;
    plan.cos = batch["cosines"], plan.sin = batch["sines"], plan.ranges = batch["ranges of keys"];
    if (plan.windowed_ranges) plan.windowed_ranges = batch["windows of keys"];
    return llama_.loss(llama_(batch["tokens"], plan), {batch["targets"], batch["weights"]});
  }

  bool limit_parameters() const override { return trained_.limit(); }

  int64_t tokens() const override { return tokens_; }

  // In the order of the files.
  std::optional<double> validation_loss() override {
    if (!data_.validation) return {};
    const TextDataset& validation = *data_.validation;
    const PausedDropout paused(trained_);
    const double sum =
        total_loss(llama_, validation.documents, std::max(data_.row_length, validation.longest), config_.batch_size);
    return sum / double(validation.counted);
  }

  Preview preview(size_t index, const OnPreviewStep& on_step) override {
    const PausedDropout paused(trained_);
    return previews_->write(llama_, index, on_step);
  }
  void outline_previews() override {
    if (previews_) previews_->outline(llama_);
  }

  fs::path save(const fs::path& stem, int64_t) override {
    const auto write_lora = [&](const std::map<std::string, Tensor>& tensors) {
      PeftExport result{.base_model = config_.model, .dropout = config_.lora_dropout, .layers = llama_.config().layers};
      if (!data_.chat_template.empty()) result.texts[kChatTemplateFile] = data_.chat_template;
      write_peft(stem, tensors, result);
      return stem;
    };
    return trained_.save(config_.save_dtype, write_lora, [&](const Weights& weights) {
      const std::optional<std::string> chat_template =
          data_.chat_template.empty() ? std::nullopt : std::optional(data_.chat_template);
      write_language_model(model_, stem, weights, config_.save_dtype, chat_template);
      return stem;
    });
  }

  std::string describe() const override {
    const std::string quantized = llama_.weights().describe_quantized();
    return trained_.describe() + (quantized.empty() ? "" : "; base in " + quantized);
  }

 private:
  // Those of a whole step, on whichever ranks, once.
  void count_tokens() {
    const std::pair step(batches_->epoch(), batches_->batch());
    if (std::exchange(counted_step_, step) == step) return;
    for (const PackedRow& row : batches_->step())
      for (const size_t i : row) tokens_ += data_.train->documents[i].size();
  }

  Llama load(Backend& backend, const BlockSchedule& block_schedule) const {
    LlamaOptions options{.adapter = trained_.adapter(), .trainable = !trained_.adapter(), .backend = &backend};
    options.dtype = data_.train ? text_dtype(config_, model_) : planned_dtype(config_, model_);
    options.block_schedule = block_schedule;
    options.outline = data_.train == nullptr;
    if (config_.from_scratch) options.draw = uint64_t(config_.seed);
    return Llama::load(model_, options);
  }

  Memory& memory() const { return *llama_.place().memory; }

  NamedTensors inputs(const PackedBatch& batch) {
    plan_ = batch.plan;
    NamedTensors all{{"tokens", batch.ids},          {"cosines", plan_->cos},
                     {"sines", plan_->sin},          {"ranges of keys", plan_->ranges},
                     {"targets", batch.targets.ids}, {"weights", batch.targets.weights}};
    if (plan_->windowed_ranges) all.add("windows of keys", plan_->windowed_ranges);
    return all;
  }

  PackedBatch blank() const {
    const std::vector<TextDocument> documents{
        {std::vector<int64_t>(size_t(data_.row_length), 0), std::vector<bool>(size_t(data_.row_length), true)}};
    return pack(documents, std::vector<PackedRow>(size_t(config_.batch_size), {0}), data_.row_length, 1,
                llama_.config(), memory());
  }

  TrainConfig config_;
  fs::path model_;
  TextData data_;
  Trained trained_;
  Llama llama_;
  std::optional<TextPreviews> previews_;
  std::optional<PackedBatches> batches_;  // none in an outline
  int64_t tokens_ = 0;
  std::pair<int64_t, int64_t> counted_step_{-1, -1};  // the last one in tokens_: epoch and number
  std::optional<TokenPlan> plan_;                     // of the last batch
};

}  // namespace

std::unique_ptr<Task> make_text_task(const TrainConfig& config, const fs::path& model, Backend& backend,
                                     const TextData& data, const BlockSchedule& block_schedule) {
  const LlamaConfig c = LlamaConfig::read(model);
  check(c.attention_dropout == 0,
        "{}: attention_dropout is {}; Wick trains without it: set it to 0, or see --lora-dropout",
        (model / "config.json").string(), c.attention_dropout);
  check(!config.from_scratch || c.initializer_range > 0,
        "{}: initializer_range should be above 0 for --from-scratch, found 0", (model / "config.json").string());
  return std::make_unique<TextTask>(config, model, backend, data, block_schedule);
}

int64_t sequence_length(const TrainConfig& config, const LlamaConfig& model) {
  constexpr int64_t kDefault = 2048;
  check(config.sequence_length <= model.positions,
        "--sequence-length: expected at most {}, the positions that the model has, found {}", model.positions,
        config.sequence_length);
  return config.sequence_length > 0 ? config.sequence_length : std::min(kDefault, model.positions);
}

DType planned_dtype(const TrainConfig& config, const fs::path& model) {
  if (const auto dtype = text_dtype(config, model)) return *dtype;
  std::map<DType, uint64_t> bytes;
  const GgufFile file = GgufFile::open(model);
  for (const auto& [name, tensor] : file.tensors())
    if (tensor.dtype && tensor.bytes) bytes[*tensor.dtype] += *tensor.bytes;
  check(!bytes.empty(), "{}: holds no tensor that Wick knows", model.string());
  return std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace wick
