// Everything a training run is told. One table names each setting once: as a flag (--batch-size), as a key of a TOML
// file (batch_size), with its limits, and whether a resumed run must agree with the one it continues.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "wick/backend/backend.h"
#include "wick/core/dtype.h"
#include "wick/nn/checkpoint.h"
#include "wick/nn/glob.h"
#include "wick/pipelines/known_models.h"
#include "wick/pipelines/process.h"
#include "wick/text/train_turns.h"
#include "wick/train/buckets.h"
#include "wick/train/objective.h"

namespace wick {

enum class TrainMode { lora, full, vae };
enum class AdapterKind { lora, dora, loha, lokr, dora_loha, dora_lokr };
enum class LrSchedule { constant, linear, cosine, cosine_with_restarts, polynomial };
enum class LongDocuments { error, cut, split };
enum class Quantize { none, fp8, fp8_block, int8, nf4, nf4_double, q8_0, q6_k, q5_k, q4_k, q4_0 };

// How settings spell the enumerators of a type, in their order. A type that is new as a setting's joins
// TrainOption::Member.
constexpr std::string_view names_of(TrainMode) { return "lora|full|vae"; }
constexpr std::string_view names_of(AdapterKind) { return "lora|dora|loha|lokr|dora-loha|dora-lokr"; }
constexpr std::string_view names_of(LrSchedule) { return "constant|linear|cosine|cosine-with-restarts|polynomial"; }
constexpr std::string_view names_of(AverageWarmup) { return "updates|power|none"; }
constexpr std::string_view names_of(OptimizerKind) {
  return "adamw|adamw8bit|lion|lion8bit|adafactor|prodigy|schedule-free|radam-schedule-free";
}
constexpr std::string_view names_of(LongDocuments) { return "error|cut|split"; }
constexpr std::string_view names_of(TrainTurns) { return "all|last"; }
constexpr std::string_view names_of(Quantize) {
  return "none|fp8|fp8-block|int8|nf4|nf4-double|q8_0|q6_k|q5_k|q4_k|q4_0";
}
constexpr std::string_view names_of(PredictionSetting) { return "auto|epsilon|v|v-zero-snr"; }
constexpr std::string_view names_of(TimestepKind) { return "logit-normal|uniform|mode"; }
constexpr std::string_view names_of(TimestepRange) { return "shifted|drawn"; }
constexpr std::string_view names_of(LossType) { return "l2|l1|huber|smooth-l1"; }
constexpr std::string_view names_of(HuberSchedule) { return "constant|exponential|snr"; }
constexpr std::string_view names_of(WeightingScheme) { return "none|sigma-sqrt|cosmap|sigma-squared"; }
std::string float_text(double value);  // with a fraction or an exponent, as TOML and Python spell floats
std::string toml_string(const std::string& text);
std::vector<std::string_view> split_names(std::string_view names);
template <class E>
requires requires(E value) { names_of(value); }
std::string_view name_of(E value) { return split_names(names_of(value))[size_t(value)]; }

// DoRA's magnitudes go with each algorithm.
constexpr bool has_magnitudes(AdapterKind kind) { return kind == AdapterKind::dora || kind >= AdapterKind::dora_loha; }
constexpr AdapterKind with_magnitudes(AdapterKind kind) {
  if (kind == AdapterKind::lora) return AdapterKind::dora;
  return kind == AdapterKind::loha ? AdapterKind::dora_loha : kind == AdapterKind::lokr ? AdapterKind::dora_lokr : kind;
}
constexpr AdapterKind without_magnitudes(AdapterKind kind) {
  if (kind == AdapterKind::dora) return AdapterKind::lora;
  return kind == AdapterKind::dora_loha ? AdapterKind::loha : kind == AdapterKind::dora_lokr ? AdapterKind::lokr : kind;
}

// A number of steps, or below 1 a share of all.
struct StepsOrShare {
  double value = 0;

  int64_t of(int64_t steps) const { return value < 1 ? int64_t(value * double(steps)) : int64_t(value); }
};

struct TrainConfig {
  std::string preset;  // whose settings come before all others
  std::string model, output;
  // Files of a model's parts, beside the model or instead of it: ModelFiles of nn/checkpoint.h.
  std::string transformer, clip_l, clip_g, t5, vae, clip_tokenizer, t5_tokenizer;
  std::vector<std::string> dataset;
  std::string datasets;  // in place of `dataset`: the tables [general] and [[datasets]], as dataset_file.h reads them
  std::string cache;     // empty: in output
  std::string name;      // "lora", or "model" for full and vae, unless given
  TrainMode train = TrainMode::lora;
  bool from_scratch = false;

  AdapterKind adapter = AdapterKind::lora;
  std::vector<std::string> targets;  // the family's default unless given
  std::string from;                  // an adapter to go on training, with its kind, modules, ranks and alphas
  ByPattern<int64_t> rank = 0;       // 0: kRank, or as `from` has it
  ByPattern<double> alpha = 0;       // 0: the rank
  int64_t conv_rank = 0;             // of convolutions of more than one pixel; 0: the rank
  double conv_alpha = 0;             // 0: conv_rank
  bool rslora = false;
  bool dora_on_output = false;  // of pictures; a language model's magnitudes are of outputs
  int64_t lokr_factor = 0;      // 0: near the root
  bool lokr_full = false, lokr_decompose_both = false, lokr_unbalanced = false;
  bool split_qkv = false;
  ByPattern<double> lora_plus = 1;
  double lora_dropout = 0, rank_dropout = 0, module_dropout = 0;
  double scale_weight_norms = 0;  // 0: does not
  static constexpr int64_t kRank = 16;

  int64_t steps = 0;   // 0: kSteps, or as many as the epochs have
  int64_t epochs = 0;  // 0: as many as the steps take
  static constexpr int64_t kSteps = 1000;
  int64_t batch_size = 1;  // 0: what fits
  int64_t accumulate = 1;
  OptimizerKind optimizer = OptimizerKind::adamw;
  ByPattern<double> lr = 0;  // 0: default_lr()
  // Arguments of optimizers, as AdafactorRule, ProdigyRule and ScheduleFreeRule of backend.h have them.
  std::vector<double> betas, eps;  // empty: the optimizer's own
  double prodigy_d_coef = 1, prodigy_d0 = 1e-6;
  double prodigy_growth_rate = 0;  // 0: no limit
  bool prodigy_safeguard_warmup = true, prodigy_use_bias_correction = true, prodigy_decouple = true;
  int64_t prodigy_slice_p = 1;
  double schedule_free_r = 0, schedule_free_weight_lr_power = 2;
  bool adafactor_scale_parameter = false, adafactor_relative_step = false, adafactor_warmup_init = false;
  double adafactor_clip_threshold = 1, adafactor_decay_rate = -0.8;
  LrSchedule lr_schedule = LrSchedule::constant;
  int64_t lr_scheduler_num_cycles = 1;
  double lr_scheduler_power = 1;
  StepsOrShare warmup;
  double weight_decay = 0.01, max_grad_norm = 1;
  double ema = 0;  // 0: none
  AverageWarmup ema_warmup = AverageWarmup::updates;
  std::string caption_extension = "auto", caption_separator = ",";
  std::string caption_prefix, caption_suffix, trigger_word, default_caption;
  std::string keep_tokens_separator, secondary_separator;
  bool caption_lines = false, caption_first_line = false, enable_wildcard = false, shuffle_caption = false;
  int64_t keep_tokens = 0, caption_variants = 8;
  double caption_dropout = 0, caption_tag_dropout_rate = 0;
  bool flip_aug = false, color_aug = false, random_crop = false;
  bool masked_loss = false, alpha_mask = false;
  std::string conditioning_data_dir, reg_data_dir;
  double prior_loss_weight = 1;
  double kl_weight = 1e-6;  // of --train vae

  PredictionSetting prediction = PredictionSetting::automatic;
  TimestepKind timesteps = TimestepKind::logit_normal;
  std::string timestep_shift = "auto", timestep_mean = "auto";  // or a number
  double timestep_std = 1;
  double train_guidance = 1;
  LossType loss_type = LossType::l2;
  HuberSchedule huber_schedule = HuberSchedule::snr;
  double huber_c = 0.1, huber_scale = 1;
  double min_snr_gamma = 0;  // 0: none
  bool debiased_estimation_loss = false, scale_v_pred_loss_like_noise_pred = false;
  WeightingScheme weighting_scheme = WeightingScheme::none;
  double noise_offset = 0, adaptive_noise_scale = 0, ip_noise_gamma = 0;
  int64_t multires_noise_iterations = 0;
  double multires_noise_discount = 0.3;
  TimestepRange timestep_range = TimestepRange::shifted;
  int64_t min_timestep = 0, max_timestep = kTimesteps;
  static constexpr int64_t kTimesteps = 1000;
  int64_t max_token_length = kClipTokens;  // of captions, in chunks of kClipTokens
  static constexpr int64_t kClipTokens = 75;
  int64_t t5_tokens = 0;  // 0: what the model was made for
  bool t5_mask = false;

  std::vector<Resolution> resolution = {0};          // 0: the model's native size
  int64_t bucket_step = 0;                           // 0: 64, or less at low resolutions
  int64_t min_bucket_reso = 0, max_bucket_reso = 0;  // 0: half and twice the resolution
  bool no_bucket = false;
  bool no_upscale = false;

  int64_t sequence_length = 0;  // 0: 2048, or the model's positions
  LongDocuments long_documents = LongDocuments::error;
  bool no_packing = false;
  std::string chat_template = "auto";               // the model's own, a name, or a file
  std::string chat_template_kwargs, template_date;  // as ChatOptions has them
  TrainTurns train_turns = TrainTurns::all;
  std::vector<std::string> val;
  int64_t val_every = 0, val_every_epochs = 0;  // 0 both: when something is saved
  double validation_split = 0;                  // the share of each folder's pictures that is held back
  int64_t validation_seed = -1;                 // -1: the seed
  int64_t max_validation_steps = 0;             // 0: all that are held back

  int64_t seed = 0;
  DType dtype = DType::f32, save_dtype = DType::f16;
  Quantize quantize = Quantize::none;
  bool fp8_compute = false;                 // products of the quantised matrices in fp8; quantize is fp8 then
  std::vector<std::string> keep_precision;  // patterns (nn/glob.h) of modules that are not quantised
  bool gradient_checkpointing = false;      // checkpoint_blocks of all
  std::string checkpoint_blocks = "0";      // or how many, or all
  bool checkpoints_on_host = false;         // what is kept of those blocks lies in the host's memory
  std::string stream_blocks = "0";          // how many blocks' weights come from the host, or all
  bool stream_text_encoder = false;         // T5's weights come from the host
  std::string host_memory;  // the most that weights and checkpoints may take there; empty: 60 % of what is free
  std::string memory;       // sizes that the run is to fit into, or auto
  std::string device = "auto";
  std::string gpus;   // "4", "all" or "0,2"; empty: one device
  int64_t ranks = 1;  // that share a step: what --gpus or a launcher says, and not a setting
  bool no_graph = false;
  bool tf32 = false;
  // Of a LoRA's file: ModelSpec's fields, kohya's comment, and whether it has little else.
  std::string metadata_title, metadata_author, metadata_description, metadata_license, metadata_tags;
  std::string metadata_trigger_phrase, metadata_usage_hint, training_comment;
  bool no_metadata = false;
  int64_t save_every = 0;           // steps; 0: at the end only
  int64_t save_every_epochs = 0;    // likewise
  double save_every_minutes = 0;    // likewise
  std::string sample_prompts;       // a file (train/sample_prompts.h)
  int64_t sample_every = 0;         // steps; 0 with epochs 0: when something is saved
  int64_t sample_every_epochs = 0;  // likewise
  int64_t keep_last = 0;            // of what these save; 0: all
  double state_every_minutes = -1;  // -1: 10, or 0 with --train full
  bool resume = false;
};

// The subjects of settings, in the order in which --help lists them.
enum class Subject { model, lora, steps, optimizer, loss, pictures, text, memory, output };
inline constexpr std::string_view kSubjects[] = {"Model and data", "LoRA",     "Steps", "Optimizer",
                                                 "Loss and noise", "Pictures", "Text",  "Precision and memory",
                                                 "Output"};

// Limits of a setting and its part in a run.
struct OptionTraits {
  double min = 0, max = std::numeric_limits<int32_t>::max();
  bool above_min = false;              // min itself is excluded
  bool fixed = true;                   // --resume demands the same value
  std::optional<ModelKind> kind = {};  // the models that have it: all unless given
  std::string_view item = "";          // the items of a list, or the kind of a text
};

inline constexpr std::string_view kAutoOrNumber = "auto|NUMBER", kAutoOrInteger = "auto|INT";  // items
inline constexpr std::string_view kNumbers = "NUMBER PATTERN=NUMBER ...", kIntegers = "INT PATTERN=INT ...",
                                  kStepsOrShare = "STEPS", kResolutions = "SIDE|WIDTHxHEIGHT ...";

struct TrainOption {
  using Member =
      std::variant<std::string TrainConfig::*, int64_t TrainConfig::*, double TrainConfig::*, bool TrainConfig::*,
                   std::vector<std::string> TrainConfig::*, std::vector<Resolution> TrainConfig::*,
                   std::vector<double> TrainConfig::*, TrainMode TrainConfig::*, AdapterKind TrainConfig::*,
                   LrSchedule TrainConfig::*, DType TrainConfig::*, LongDocuments TrainConfig::*,
                   TrainTurns TrainConfig::*, Quantize TrainConfig::*, TimestepKind TrainConfig::*,
                   TimestepRange TrainConfig::*, PredictionSetting TrainConfig::*, LossType TrainConfig::*,
                   HuberSchedule TrainConfig::*, WeightingScheme TrainConfig::*, OptimizerKind TrainConfig::*,
                   AverageWarmup TrainConfig::*, StepsOrShare TrainConfig::*, ByPattern<int64_t> TrainConfig::*,
                   ByPattern<double> TrainConfig::*>;

  std::string_view key;
  Subject subject;
  Member member;
  std::string_view help;
  OptionTraits traits = {};

  std::string flag() const;                           // "--batch-size"
  std::string flags() const;                          // with its aliases, "--batch-size,--train-batch-size"
  std::string_view type() const;                      // "INT", "INT ...", "NUMBER", "lora|full|vae", ...
  std::string toml(const TrainConfig& config) const;  // its value as TOML
  bool is_bool() const;
  bool is_switch() const;  // a bool that is false unless the flag is given, which takes no value
  bool is_list() const;
  bool is_by_pattern() const;  // a number, or several words: a number, and others for patterns

  // From a flag's words. Throws UsageError: "--rank: expected an integer from 1 to ..., found 'x'".
  void set(TrainConfig& config, const std::vector<std::string>& words) const;
  void copy(const TrainConfig& from, TrainConfig& to) const;
  // From such words elsewhere; `where` stands for the flag in errors.
  void set(TrainConfig& config, const std::vector<std::string>& words, const std::string& where) const;
};

const std::vector<TrainOption>& train_options();

// What kohya's scripts call a setting that has another name here and the same values: a flag and a key too.
struct TrainAlias {
  std::string_view spelling, key;
};
std::span<const TrainAlias> train_aliases();
const TrainOption* find_option(std::string_view key);  // by its key or an alias; null where there is none
// The same for tables within Wick, whose rows tests walk: throws Error where there is none.
const TrainOption& option_named(std::string_view key);

// Reads a file's settings; unknown keys, wrong types and numbers out of range are UsageErrors naming file and key.
// Folders of its [[datasets]] are relative to the working directory, as its other paths are.
void read_toml(TrainConfig& config, const std::filesystem::path& file);
// All settings but `resume` and those that are empty, including those that follow from others (`steps` from the
// epochs), so that `--config` with this file is the same run again.
std::string to_toml(const TrainConfig& config);

// Fills in settings that follow from others, makes paths absolute, and checks the demands of settings on each other and
// that those `needed` are there. Throws UsageError.
void resolve(TrainConfig& config, const std::vector<std::string_view>& needed = {"model", "dataset", "output"});

// The sizes of --memory, in bytes; none for auto. Throws UsageError.
std::vector<std::optional<size_t>> asked_memory(const TrainConfig& config);
std::optional<DType> quantized_dtype(const TrainConfig& config);  // none where nothing is quantised

// The model's files as they are named; a model's name is not resolved.
ModelFiles model_files(const TrainConfig& config);

// Throws Error naming a setting that only the other kind of models has.
void check_kind(const TrainConfig& config, ModelKind kind);

}  // namespace wick
