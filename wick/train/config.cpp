#include "wick/train/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

#include "wick/backend/registry.h"
#include "wick/core/dtype_names.h"
#include "wick/core/error.h"
#include "wick/io/byte_size.h"
#include "wick/io/quote.h"
#include "wick/pipelines/weight_flags.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

constexpr std::string_view names_of(DType) { return "f32|bf16|f16"; }  // no model is stored in the rest

// The value's type and the setting's place, whatever it is: f(config.*member).
template <class Config, class F>
decltype(auto) visit_member(Config& config, const TrainOption::Member& member, F&& f) {
  return std::visit([&](auto pointer) -> decltype(auto) { return f(config.*pointer); }, member);
}

[[noreturn]] void fail_value(const std::string& where, std::string_view expected, std::string_view found) {
  fail_usage("{}: expected {}, found '{}'", where, expected, found);
}

bool within(const OptionTraits& t, double value) {
  return std::isfinite(value) && (t.above_min ? value > t.min : value >= t.min) && value <= t.max;
}

template <class T>
std::optional<T> parsed(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

// The message names a very large bound only if the number exceeds it.
std::string limits(const OptionTraits& t, const std::string& found) {
  constexpr double kEndOfInt64 = 0x1p63;
  const std::optional<double> size = parsed<double>(found);
  const bool bounded =
      t.max < double(std::numeric_limits<int32_t>::max()) || (size && (*size > t.max || *size >= kEndOfInt64));
  const std::string most =
      t.max >= kEndOfInt64 ? fmt::format("{}", std::numeric_limits<int64_t>::max()) : fmt::format("{}", t.max);
  if (t.above_min) return fmt::format("above {}{}", t.min, bounded ? " and at most " + most : "");
  return bounded ? fmt::format("from {} to {}", t.min, most) : fmt::format("of at least {}", t.min);
}

// One overload per type of setting; `text` is the user's.
void set_value(std::string& value, const OptionTraits& traits, const std::string& text, const std::string& where) {
  if (text.empty()) fail_value(where, traits.item.empty() ? "a name" : traits.item, "");
  if (traits.item == kAutoOrNumber && text != "auto") {
    const std::optional<double> number = parsed<double>(text);
    if (!number || !within(traits, *number)) fail_value(where, "auto or a number " + limits(traits, text), text);
  }
  value = text;
}

template <class T>
requires std::is_same_v<T, int64_t> || std::is_same_v<T, double>
void set_value(T& value, const OptionTraits& traits, const std::string& text, const std::string& where) {
  if (traits.item == kAutoOrInteger && text == "auto") {
    value = 0;
    return;
  }
  const std::optional<T> number = parsed<T>(text);
  if (!number || !within(traits, double(*number)))
    fail_value(where,
               (traits.item == kAutoOrInteger ? "auto or " : "") +
                   std::string(std::is_same_v<T, double> ? "a number " : "an integer ") + limits(traits, text),
               text);
  value = *number;
}

void set_value(bool& value, const OptionTraits&, const std::string& text, const std::string& where) {
  if (text != "true" && text != "false") fail_value(where, "true or false", text);
  value = text == "true";
}

void set_value(Resolution& value, const OptionTraits& traits, const std::string& text, const std::string& where) {
  const std::optional<Resolution> read = Resolution::read(text);
  if (!read || double(read->longer()) > traits.max || (read->shorter() == 0 && read->longer() > 0))
    fail_value(where, fmt::format("a side or WIDTHxHEIGHT, of at most {}", traits.max), text);
  value = *read;
}

void set_value(StepsOrShare& steps, const OptionTraits& traits, const std::string& text, const std::string& where) {
  set_value(steps.value, traits, text, where);
  if (steps.value >= 1 && steps.value != std::floor(steps.value))
    fail_value(where, "a whole number of steps, or a share of them below 1", text);
}

// Kohya spells them with underscores.
template <class T>
requires std::is_enum_v<T>
void set_value(T& value, const OptionTraits&, const std::string& text, const std::string& where) {
  const auto names = split_names(names_of(T{}));
  const std::string_view word = std::is_same_v<T, DType> ? own_dtype_name(text) : std::string_view(text);
  const auto same = [](char a, char b) { return a == b || (a == '-' && b == '_'); };
  const auto found =
      std::ranges::find_if(names, [&](std::string_view name) { return std::ranges::equal(name, word, same); });
  if (found == names.end()) fail_value(where, fmt::format("one of {}", fmt::join(names, ", ")), text);
  value = T(found - names.begin());
}

template <class T>
void set_words(std::vector<T>& list, const OptionTraits& traits, const std::vector<std::string>& words,
               const std::string& where) {
  if constexpr (std::is_same_v<T, std::string>) {
    list = words;
  } else {
    check_usage(!words.empty() || std::is_same_v<T, double>, "{}: expected at least one number, found none", where);
    list.clear();
    for (const std::string& word : words) set_value(list.emplace_back(), traits, word, where);
  }
}

// A number, which may be left out, and others behind patterns: "text_encoder*=5e-5".
template <class T>
void set_words(ByPattern<T>& numbers, const OptionTraits& traits, const std::vector<std::string>& words,
               const std::string& where) {
  check_usage(!words.empty(), "{}: expected a number, found none", where);
  numbers.others.clear();
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].rfind('=');
    if (equals == std::string::npos) {
      check_usage(i == 0, "{}: expected PATTERN=NUMBER behind the first number, found {}", where, quote(words[i]));
      set_value(numbers.value, traits, words[i], where);
      continue;
    }
    const std::string pattern = words[i].substr(0, equals);
    check_usage(!pattern.empty(), "{}: expected PATTERN=NUMBER, found {}", where, quote(words[i]));
    T value{};
    set_value(value, traits, words[i].substr(equals + 1), fmt::format("{}: {}", where, pattern));
    numbers.others.push_back({pattern, value});
  }
}

std::string toml_value(const std::string& text) { return toml_string(text); }
std::string toml_value(int64_t value) { return fmt::format("{}", value); }
std::string toml_value(bool value) { return fmt::format("{}", value); }
std::string toml_value(double value) { return float_text(value); }
std::string toml_value(const std::vector<std::string>& list) {
  std::vector<std::string> quoted;
  for (const std::string& item : list) quoted.push_back(toml_value(item));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}
std::string toml_value(const std::vector<double>& list) {
  if (list.size() == 1) return toml_value(list.front());
  std::vector<std::string> items;
  for (const double item : list) items.push_back(toml_value(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}
std::string toml_value(Resolution value) {
  return value.width == value.height ? value.text() : toml_value(value.text());
}
std::string toml_value(const std::vector<Resolution>& list) {
  std::vector<std::string> each;
  for (const Resolution value : list) each.push_back(toml_value(value));
  return each.size() == 1 ? each.front() : fmt::format("[{}]", fmt::join(each, ", "));
}
template <class T>
requires std::is_enum_v<T> std::string toml_value(T value) {
  return toml_value(std::string(split_names(names_of(value))[size_t(value)]));
}
std::string toml_value(StepsOrShare steps) {
  return steps.value > 0 && steps.value < 1 ? toml_value(steps.value) : toml_value(int64_t(steps.value));
}
template <class T>
std::string toml_value(const ByPattern<T>& numbers) {
  std::string text = toml_value(numbers.value);
  for (const auto& other : numbers.others) text += ", " + toml_value(fmt::format("{}={}", other.pattern, other.value));
  return numbers.others.empty() ? text : fmt::format("[{}]", text);
}

void check_name(const std::string& name) {
  check_usage(name.find('/') == std::string::npos && name != "." && name != "..",
              "--name: expected a file name without '/', found '{}'", name);
  // The names beside the result, and room for suffixes.
  constexpr size_t kLongestName = 200;
  static constexpr std::string_view kTaken[] = {"state",       "logs",          "cache",    "samples",
                                                "config.toml", "metrics.jsonl", "loss.png", "index.html"};
  check_usage(std::find(std::begin(kTaken), std::end(kTaken), name) == std::end(kTaken),
              "--name: '{}' is what a run calls another of its files; choose another", name);
  check_usage(name.size() <= kLongestName, "--name: expected at most {} bytes, found {}", kLongestName, name.size());
}

std::string flag_of(std::string_view key) {
  std::string name = "--" + std::string(key);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

struct PartMember {
  ModelPart part;
  std::string TrainConfig::*member;
};

// The setting of each part of a model.
std::vector<PartMember> part_members() {
  using C = TrainConfig;
  constexpr std::string C::*kMembers[] = {&C::transformer, &C::clip_l,         &C::clip_g,      &C::t5,
                                          &C::vae,         &C::clip_tokenizer, &C::t5_tokenizer};
  assert(std::size(kMembers) == model_parts().size());
  std::vector<PartMember> all;
  for (const ModelPart& part : model_parts()) all.push_back({part, kMembers[all.size()]});
  return all;
}

std::vector<TrainOption> listed_options() {
  using C = TrainConfig;
  std::vector<TrainOption> all;
  const auto add = [&](std::string_view key, Subject subject, TrainOption::Member member, std::string_view help,
                       const OptionTraits& traits = {}) {
    all.push_back({key, subject, member, help, traits});
  };
  add("preset", Subject::model, &C::preset,
      "Another trainer's ranks, rates, losses and schedules, where they are not given: kohya-sdxl, ai-toolkit-flux, "
      "onetrainer-sd3 … (docs/coming-from-kohya.md)",
      {.fixed = false, .kind = ModelKind::pictures, .item = "NAME"});
  add("model", Subject::model, &C::model, model_help(), {.fixed = false, .item = "MODEL"});
  for (const auto& [part, member] : part_members())
    add(part.name, Subject::model, member, part.help, {.fixed = false, .kind = ModelKind::pictures, .item = part.item});
  add("dataset", Subject::model, &C::dataset,
      "Folder of pictures, each with its caption beside it in a .txt or .caption, or a .toml file of several in "
      "kohya's "
      "format; for language models files of JSON lines",
      {.fixed = false, .item = "PATH ..."});
  add("cache", Subject::model, &C::cache,
      "Folder that keeps what frozen encoders make of pictures and captions, for this run and others; none: keeps "
      "nothing "
      "[cache in --output]",
      {.fixed = false, .kind = ModelKind::pictures, .item = "FOLDER|none"});
  add("val", Subject::model, &C::val,
      "Pictures that are held back, or files of JSON lines, whose loss is told too; as --dataset names them",
      {.fixed = false, .item = "PATH ..."});
  add("validation_split", Subject::model, &C::validation_split,
      "Share of each folder's pictures that is held back in place of --val; those of regularisation are not",
      {.max = 0.9, .kind = ModelKind::pictures});
  add("validation_seed", Subject::model, &C::validation_seed, "Seed by which these pictures are chosen [--seed]",
      {.min = -1, .max = double(std::numeric_limits<int64_t>::max()), .kind = ModelKind::pictures});
  add("max_validation_steps", Subject::model, &C::max_validation_steps,
      "Validate with so many of the pictures that are held back at most; 0: with all",
      {.fixed = false, .kind = ModelKind::pictures});
  add("val_every", Subject::steps, &C::val_every, "Steps from one validation to the next; 0: when something is saved",
      {.fixed = false});
  add("val_every_epochs", Subject::steps, &C::val_every_epochs, "Epochs from one validation to the next",
      {.fixed = false});
  add("output", Subject::output, &C::output,
      "Folder for what the run leaves; one that holds a run is only taken up with --resume",
      {.fixed = false, .item = "FOLDER"});
  add("name", Subject::output, &C::name, "Name of what is trained: NAME.safetensors, or a folder [lora]",
      {.fixed = false, .item = "NAME"});
  add("train", Subject::model, &C::train,
      "A LoRA, every weight of the denoiser (UNet or transformer) or of the language model, or the VAE");
  add("from_scratch", Subject::model, &C::from_scratch,
      "With --train full: begin with random weights; --model needs its configs and tokenizer alone",
      {.kind = ModelKind::text});
  add("adapter", Subject::lora, &C::adapter,
      "LoRA; DoRA, which scales the weight's rows or columns too; LoHa or LoKr, for pictures, whose changes are "
      "products of two by elements, or of Kronecker; and those two with DoRA's scales");
  add("dora_on_output", Subject::lora, &C::dora_on_output,
      "DoRA's scales are of a weight's outputs, as LyCORIS' and PEFT's are, and not of its inputs, as ComfyUI reads "
      "them best",
      {.kind = ModelKind::pictures});
  add("split_qkv", Subject::lora, &C::split_qkv,
      "Of FLUX and SD3: q, k, v, and what else is one matrix with them, get a LoRA each, as in diffusers; files have "
      "OneTrainer's names",
      {.kind = ModelKind::pictures});
  add("targets", Subject::lora, &C::targets,
      "Modules that get a LoRA: * matches anything, a name without one is also an end (q_proj, lm_head), a "
      "leading - excludes, later patterns win [kohya's: attention and feed-forward of SDXL, of FLUX and SD3 modulation "
      "too; of a language model every linear of its layers]",
      {.item = "PATTERN ..."});
  add("from", Subject::lora, &C::from, "Go on training this adapter: its kind, modules, ranks and alphas",
      {.item = "FILE"});
  add("rank", Subject::lora, &C::rank, "Rank of the LoRA, and others of modules named as by --targets [16]",
      {.min = 1, .max = 4096, .item = kIntegers});
  add("alpha", Subject::lora, &C::alpha, "The LoRA's scale is alpha / rank [the rank]", {.item = kNumbers});
  add("conv_rank", Subject::lora, &C::conv_rank,
      "Also train SDXL's convolutions, those of more than one pixel with this rank; 0: does not",
      {.max = 4096, .kind = ModelKind::pictures});
  add("conv_alpha", Subject::lora, &C::conv_alpha, "Their alpha [--conv-rank]",
      {.above_min = true, .kind = ModelKind::pictures});
  add("lokr_factor", Subject::lora, &C::lokr_factor,
      "Rows and columns of a LoKr's first matrix, or the largest divisors below; 0: those near the roots of a weight's",
      {.max = 4096, .kind = ModelKind::pictures});
  add("lokr_full", Subject::lora, &C::lokr_full, "A LoKr's second matrix is whole, whatever the rank",
      {.kind = ModelKind::pictures});
  add("lokr_decompose_both", Subject::lora, &C::lokr_decompose_both,
      "A LoKr's first matrix is a product of two as well, where its sides are more than twice the rank",
      {.kind = ModelKind::pictures});
  add("lokr_unbalanced", Subject::lora, &C::lokr_unbalanced, "A LoKr's first matrix has the larger divisor of the rows",
      {.kind = ModelKind::pictures});
  add("rslora", Subject::lora, &C::rslora, "The scale is alpha / sqrt(rank)");
  add("lora_plus", Subject::lora, &C::lora_plus,
      "Times the learning rate, of the factors that begin at zero, and others by module as --lr has them: LoRA+, whose "
      "authors take 16",
      {.max = 1e38, .above_min = true, .item = kNumbers});
  add("lora_dropout", Subject::lora, &C::lora_dropout,
      "Share of its inputs that a LoRA does not see, drawn anew for each batch", {.max = 0.999});
  add("rank_dropout", Subject::lora, &C::rank_dropout,
      "Share of its ranks that a LoRA leaves out, drawn anew for each batch", {.max = 0.999});
  add("module_dropout", Subject::lora, &C::module_dropout, "Share of modules left out likewise", {.max = 0.999});
  add("scale_weight_norms", Subject::lora, &C::scale_weight_norms,
      "After each step scales a module's factors down so that the norm of what they add is at most this; 0: does not",
      {.max = 1e6});
  add("steps", Subject::steps, &C::steps, "Optimizer steps [1000, or as many as --epochs have]",
      {.min = 1, .fixed = false});
  add("epochs", Subject::steps, &C::epochs, "Passes over the data set, in place of --steps [as many as those take]",
      {.fixed = false});
  add("batch_size", Subject::steps, &C::batch_size,
      "Pictures, or rows of text, a batch; auto: as many as fit where each costs no more than one alone",
      {.min = 1, .max = 65536, .item = kAutoOrInteger});
  add("accumulate", Subject::steps, &C::accumulate, "Batches a step", {.min = 1, .max = 65536});
  add("optimizer", Subject::optimizer, &C::optimizer,
      "Rule of the updates; schedule-free and radam-schedule-free save and validate their averages, and prodigy finds "
      "the rate itself");
  add("lr", Subject::optimizer, &C::lr,
      "Learning rate, and others of modules named as by --targets: 1e-4 'text_encoder*=5e-5'; unless given 3e-05 with "
      "lion and lion8bit, with prodigy 1, a factor of what it finds, and with --adafactor-relative-step 0.01 [0.0001]",
      {.max = 1e38, .above_min = true, .fixed = false, .item = kNumbers});
  add("lr_schedule", Subject::optimizer, &C::lr_schedule, "How the learning rate falls after its warm-up");
  add("lr_scheduler_num_cycles", Subject::optimizer, &C::lr_scheduler_num_cycles,
      "Cosines of --lr-schedule cosine-with-restarts", {.min = 1});
  add("lr_scheduler_power", Subject::optimizer, &C::lr_scheduler_power, "Power of --lr-schedule polynomial",
      {.max = 100, .above_min = true});
  add("warmup", Subject::optimizer, &C::warmup,
      "Steps in which the learning rate climbs to --lr, or below 1 their share of all", {.item = kStepsOrShare});
  add("weight_decay", Subject::optimizer, &C::weight_decay, "Weight decay, beside the gradients", {.max = 1e38});
  add("betas", Subject::optimizer, &C::betas,
      "Betas of the optimizer, where it has them: 0.9 0.999; a third one is prodigy's beta3 [as the optimizer has "
      "them]",
      {.max = 0.9999999, .item = "NUMBER ..."});
  add("eps", Subject::optimizer, &C::eps,
      "Epsilon beside the root of second moments; of adafactor the one beside squared gradients, and the least scale "
      "of a parameter [1e-08; with adafactor 1e-30 0.001]",
      {.max = 1, .above_min = true, .item = "NUMBER ..."});
  add("prodigy_d_coef", Subject::optimizer, &C::prodigy_d_coef, "Prodigy: times each new estimate of the rate",
      {.max = 1e6, .above_min = true});
  add("prodigy_d0", Subject::optimizer, &C::prodigy_d0, "Prodigy: the first estimate", {.max = 1, .above_min = true});
  add("prodigy_growth_rate", Subject::optimizer, &C::prodigy_growth_rate,
      "Prodigy: the most by which the estimate grows in a step, as 1.02; 0: no limit", {.max = 1e30});
  add("prodigy_safeguard_warmup", Subject::optimizer, &C::prodigy_safeguard_warmup,
      "Prodigy: the estimate's denominator leaves --lr out, for warm-ups");
  add("prodigy_use_bias_correction", Subject::optimizer, &C::prodigy_use_bias_correction,
      "Prodigy: Adam's correction of the first steps");
  add("prodigy_decouple", Subject::optimizer, &C::prodigy_decouple,
      "Prodigy: weight decay beside the gradients; false: in them");
  add("prodigy_slice_p", Subject::optimizer, &C::prodigy_slice_p,
      "Prodigy: the estimate reads each so many-th element of a parameter", {.min = 1});
  add("schedule_free_r", Subject::optimizer, &C::schedule_free_r, "Schedule-free: step k weighs k^r in the average",
      {.max = 100});
  add("schedule_free_weight_lr_power", Subject::optimizer, &C::schedule_free_weight_lr_power,
      "Schedule-free: and this power of the largest rate so far", {.max = 100});
  add("adafactor_scale_parameter", Subject::optimizer, &C::adafactor_scale_parameter,
      "Adafactor: times the rate, the root mean square of each parameter");
  add("adafactor_relative_step", Subject::optimizer, &C::adafactor_relative_step,
      "Adafactor: in step t the rate is 1 / sqrt(t), and at most --lr");
  add("adafactor_warmup_init", Subject::optimizer, &C::adafactor_warmup_init,
      "With --adafactor-relative-step: and at most t / 1e6");
  add("adafactor_clip_threshold", Subject::optimizer, &C::adafactor_clip_threshold,
      "Adafactor: the most that an update's root mean square may be", {.max = 1e30, .above_min = true});
  add("adafactor_decay_rate", Subject::optimizer, &C::adafactor_decay_rate,
      "Adafactor: in step t second moments keep 1 - t^(this)", {.min = -10, .max = 0});
  add("max_grad_norm", Subject::optimizer, &C::max_grad_norm, "Clips the norm of all gradients; 0: does not");
  add("ema", Subject::optimizer, &C::ema, "Saves an average of the weights that decays so, as 0.999; 0: does not",
      {.max = 0.999999});
  add("ema_warmup", Subject::optimizer, &C::ema_warmup,
      "How that average begins: update t decays by at most (1 + t) / (10 + t), or 1 - t^(-2/3), or as all");
  add("caption_dropout", Subject::pictures, &C::caption_dropout, "Share of captions left empty",
      {.max = 1, .kind = ModelKind::pictures});
  add("caption_extension", Subject::pictures, &C::caption_extension,
      "Ending of the captions' files; auto: .txt or .caption, whichever is there",
      {.kind = ModelKind::pictures, .item = "auto|ENDING"});
  add("caption_lines", Subject::pictures, &C::caption_lines,
      "Each line of such a file is a caption; a sample has one of them", {.kind = ModelKind::pictures});
  add("caption_first_line", Subject::pictures, &C::caption_first_line,
      "The first line of such a file is the caption, and not all of it", {.kind = ModelKind::pictures});
  add("enable_wildcard", Subject::pictures, &C::enable_wildcard,
      "{a|b} in a caption is one of its parts, {{ and }} are braces, and of several lines a sample has one; it has one "
      "of --caption-variants choices",
      {.kind = ModelKind::pictures});
  add("default_caption", Subject::pictures, &C::default_caption, "Caption of pictures that have no file of one",
      {.kind = ModelKind::pictures});
  add("caption_prefix", Subject::pictures, &C::caption_prefix, "Text before every caption, and a space",
      {.kind = ModelKind::pictures});
  add("caption_suffix", Subject::pictures, &C::caption_suffix, "Text behind every caption, after a space",
      {.kind = ModelKind::pictures});
  add("trigger_word", Subject::pictures, &C::trigger_word,
      "Stands for [trigger] in captions and in --sample-prompts; captions that have neither begin with it and a comma",
      {.kind = ModelKind::pictures});
  add("shuffle_caption", Subject::pictures, &C::shuffle_caption,
      "Shuffle the tags of a caption; a sample has one of --caption-variants orders", {.kind = ModelKind::pictures});
  add("keep_tokens", Subject::pictures, &C::keep_tokens,
      "Tags at the beginning of a caption that are neither shuffled nor dropped", {.kind = ModelKind::pictures});
  add("keep_tokens_separator", Subject::pictures, &C::keep_tokens_separator,
      "Where this text stands in a caption, the tags before it are those, in place of --keep-tokens; where it stands "
      "again, so are the tags behind that",
      {.kind = ModelKind::pictures});
  add("caption_tag_dropout_rate", Subject::pictures, &C::caption_tag_dropout_rate, "Share of the other tags left out",
      {.max = 1, .kind = ModelKind::pictures});
  add("caption_separator", Subject::pictures, &C::caption_separator, "Text between tags",
      {.kind = ModelKind::pictures});
  add("secondary_separator", Subject::pictures, &C::secondary_separator,
      "Text between tags that stay together; it becomes --caption-separator", {.kind = ModelKind::pictures});
  add("caption_variants", Subject::pictures, &C::caption_variants,
      "Orders or choices of a caption's tags that are encoded before the first step",
      {.min = 1, .max = 1024, .kind = ModelKind::pictures});
  add("flip_aug", Subject::pictures, &C::flip_aug, "Mirror half of the samples", {.kind = ModelKind::pictures});
  add("color_aug", Subject::pictures, &C::color_aug,
      "Turn the hue or change the gamma of a third of the samples; they are encoded as they come, not before the first "
      "step",
      {.kind = ModelKind::pictures});
  add("random_crop", Subject::pictures, &C::random_crop,
      "Crop pictures anywhere and not in the middle; they are encoded as they come too", {.kind = ModelKind::pictures});
  add("masked_loss", Subject::pictures, &C::masked_loss,
      "Weigh the loss by masks: white counts, black does not; they are --alpha-mask, or in a folder",
      {.kind = ModelKind::pictures});
  add("alpha_mask", Subject::pictures, &C::alpha_mask, "A picture's transparency is its mask; for --masked-loss",
      {.kind = ModelKind::pictures});
  add("conditioning_data_dir", Subject::pictures, &C::conditioning_data_dir,
      "Folder of masks, with the pictures' names and sizes; for --masked-loss",
      {.fixed = false, .kind = ModelKind::pictures, .item = "FOLDER"});
  add("reg_data_dir", Subject::pictures, &C::reg_data_dir,
      "Folder of pictures for regularisation, of which an epoch shows as many as of others",
      {.fixed = false, .kind = ModelKind::pictures, .item = "FOLDER"});
  add("prior_loss_weight", Subject::pictures, &C::prior_loss_weight,
      "Weight of the loss of pictures for regularisation", {.max = 1000, .kind = ModelKind::pictures});
  add("kl_weight", Subject::pictures, &C::kl_weight, "Weight of the KL term of --train vae",
      {.max = 1000, .kind = ModelKind::pictures});
  add("prediction", Subject::pictures, &C::prediction,
      "SDXL: what the model predicts, the noise, v, or v with a last timestep that has no signal, in place of what its "
      "files say",
      {.kind = ModelKind::pictures});
  add("timesteps", Subject::pictures, &C::timesteps, "How FLUX and SD3 draw the time of a step",
      {.kind = ModelKind::pictures});
  add("timestep_shift", Subject::pictures, &C::timestep_shift,
      "Moves these times towards noise: a factor, or auto, the model's own for the picture's size",
      {.max = 1000, .above_min = true, .kind = ModelKind::pictures, .item = kAutoOrNumber});
  add("timestep_mean", Subject::pictures, &C::timestep_mean,
      "Mean of the logit of logit-normal times; auto is the logarithm of the shift, which it stands for",
      {.min = -100, .max = 100, .kind = ModelKind::pictures, .item = kAutoOrNumber});
  add("timestep_std", Subject::pictures, &C::timestep_std, "Standard deviation of that logit",
      {.max = 100, .above_min = true, .kind = ModelKind::pictures});
  add("min_timestep", Subject::pictures, &C::min_timestep,
      "The least timestep of the 1000 of noise that a step draws; FLUX's and SD3's times are scaled into the range",
      {.max = double(C::kTimesteps), .kind = ModelKind::pictures});
  add("max_timestep", Subject::pictures, &C::max_timestep, "The timestep below which all are drawn",
      {.max = double(C::kTimesteps), .kind = ModelKind::pictures});
  add("timestep_range", Subject::pictures, &C::timestep_range,
      "Whether FLUX's and SD3's times are scaled into that range behind the shift, as kohya's scripts do, or before "
      "it, "
      "as OneTrainer does",
      {.kind = ModelKind::pictures});
  add("max_token_length", Subject::pictures, &C::max_token_length,
      "SDXL: tokens of a caption that CLIP reads, in chunks of 75: 75, 150 or 225; longer captions are cut",
      {.min = 75, .max = 225, .kind = ModelKind::pictures});
  add("train_guidance", Subject::pictures, &C::train_guidance, "Guidance that FLUX dev models are told in training",
      {.max = 100, .kind = ModelKind::pictures});
  add("min_snr_gamma", Subject::loss, &C::min_snr_gamma,
      "SDXL: weighs times by min(SNR, gamma) / SNR; 5 is its authors' gamma, 0: does not",
      {.max = 1e6, .kind = ModelKind::pictures});
  add("debiased_estimation_loss", Subject::loss, &C::debiased_estimation_loss, "SDXL: weighs times by 1 / sqrt(SNR)",
      {.kind = ModelKind::pictures});
  add("scale_v_pred_loss_like_noise_pred", Subject::loss, &C::scale_v_pred_loss_like_noise_pred,
      "SDXL that predicts v: weighs times by SNR / (SNR + 1)", {.kind = ModelKind::pictures});
  add("weighting_scheme", Subject::loss, &C::weighting_scheme,
      "FLUX and SD3: weighs a time sigma by 1, 1 / sigma^2, 2 / (pi (1 - 2 sigma + 2 sigma^2)) or sigma^2",
      {.kind = ModelKind::pictures});
  add("loss_type", Subject::loss, &C::loss_type, "Mean of squares, of magnitudes, or of squares that end in lines at c",
      {.kind = ModelKind::pictures});
  add("huber_schedule", Subject::loss, &C::huber_schedule,
      "How that c changes on the way to noise: not, or from 1 down to it, exponentially or with the SNR",
      {.kind = ModelKind::pictures});
  add("huber_c", Subject::loss, &C::huber_c, "That c", {.max = 1000, .above_min = true, .kind = ModelKind::pictures});
  add("huber_scale", Subject::loss, &C::huber_scale, "Times it, with the schedules constant and exponential",
      {.max = 1000, .above_min = true, .kind = ModelKind::pictures});
  add("noise_offset", Subject::loss, &C::noise_offset,
      "Adds noise to the noise that is the same for all of a channel, so many times; 0.05 for darker and brighter "
      "pictures",
      {.max = 10, .kind = ModelKind::pictures});
  add("adaptive_noise_scale", Subject::loss, &C::adaptive_noise_scale,
      "Adds to --noise-offset so many times the size of a channel's mean in the picture",
      {.min = -10, .max = 10, .kind = ModelKind::pictures});
  add("multires_noise_iterations", Subject::loss, &C::multires_noise_iterations,
      "Adds so many coarser noises to the noise: 6 to 10; 0: none", {.max = 32, .kind = ModelKind::pictures});
  add("multires_noise_discount", Subject::loss, &C::multires_noise_discount, "Weight of each to the one before it",
      {.max = 1, .above_min = true, .kind = ModelKind::pictures});
  add("ip_noise_gamma", Subject::loss, &C::ip_noise_gamma,
      "Adds so many times other noise to what the model sees, and not to what it is to predict",
      {.max = 10, .kind = ModelKind::pictures});
  add("t5_tokens", Subject::pictures, &C::t5_tokens,
      "Tokens of a caption that T5 reads: longer ones are cut, shorter ones padded [as listed below]",
      {.max = 4096, .kind = ModelKind::pictures});
  add("t5_mask", Subject::pictures, &C::t5_mask, "Hide the padding of T5's tokens from all others",
      {.kind = ModelKind::pictures});
  add("resolution", Subject::pictures, &C::resolution,
      "Side of a square in pixels, or 1344x1792: buckets have its area; with several, an epoch shows each picture at "
      "each of them [as listed below, or what the model's files say]",
      {.max = 16384, .kind = ModelKind::pictures, .item = kResolutions});
  add("bucket_step", Subject::pictures, &C::bucket_step,
      "Sides of buckets are multiples of so many pixels [64, or a quarter of a lower resolution]",
      {.max = 16384, .kind = ModelKind::pictures});
  add("min_bucket_reso", Subject::pictures, &C::min_bucket_reso,
      "Shortest side of a bucket [half of the shorter of --resolution]", {.max = 16384, .kind = ModelKind::pictures});
  add("max_bucket_reso", Subject::pictures, &C::max_bucket_reso,
      "Longest side of a bucket [twice the longer of --resolution]", {.max = 16384, .kind = ModelKind::pictures});
  add("no_bucket", Subject::pictures, &C::no_bucket, "All pictures are cropped to --resolution",
      {.kind = ModelKind::pictures});
  add("no_upscale", Subject::pictures, &C::no_upscale,
      "Never scale pictures up: small ones get buckets of their own size at each --resolution above it",
      {.kind = ModelKind::pictures});
  add("sequence_length", Subject::text, &C::sequence_length,
      "Tokens of a row, into which documents are packed [2048, or the model's positions]", {.kind = ModelKind::text});
  add("long_documents", Subject::text, &C::long_documents,
      "What becomes of documents of more tokens: refused, cut at the end, or split into several",
      {.kind = ModelKind::text});
  add("no_packing", Subject::text, &C::no_packing,
      "A row holds one document, and is as long as the longest of its batch", {.kind = ModelKind::text});
  add("chat_template", Subject::text, &C::chat_template,
      "How conversations become text: the model's own template; one of its names, or of llama2, llama3, mistral-v1, "
      "mistral-v3, mistral-tekken, chatml, qwen3; or a file of Jinja",
      {.kind = ModelKind::text, .item = "NAME|FILE"});
  add("chat_template_kwargs", Subject::text, &C::chat_template_kwargs,
      "Variables of the chat template, as a JSON object: '{\"enable_thinking\": false}'",
      {.kind = ModelKind::text, .item = "JSON"});
  add("template_date", Subject::text, &C::template_date,
      "The date that a chat template tells, if it tells one: 2026-11-27, or 2026-11-27T13:04:05 [when the run begins]",
      {.kind = ModelKind::text, .item = "DATE"});
  add("train_turns", Subject::text, &C::train_turns, "The assistant's messages of a conversation that are learnt",
      {.kind = ModelKind::text});
  add("seed", Subject::steps, &C::seed, "Seed of all random numbers",
      {.max = double(std::numeric_limits<int64_t>::max())});
  add("dtype", Subject::memory, &C::dtype,
      "Of frozen weights, and on a device of all arithmetic on them; --bf16 and --fp16 for short");
  add("quantize", Subject::memory, &C::quantize,
      "Keep the frozen matrices of the blocks in 4 to 8 bits, and other weights in bf16 unless --fp16 is given");
  add("fp8_compute", Subject::memory, &C::fp8_compute,
      "Multiply the frozen matrices of the blocks in fp8, on devices with tensor cores for it (8.9 and later); they "
      "are "
      "kept as by --quantize fp8");
  add("keep_precision", Subject::memory, &C::keep_precision,
      "Modules that are not quantised, as --targets names modules",
      {.kind = ModelKind::pictures, .item = "PATTERN ..."});
  add("memory", Subject::memory, &C::memory,
      "All that the run may take on the device, for example 12GiB, or auto for what is free: the base's precision and "
      "the blocks computed twice are chosen to fit, the fastest way first",
      {.fixed = false, .item = "SIZE"});
  add("save_dtype", Subject::output, &C::save_dtype, "Number format of the weights written", {.fixed = false});
  add("gradient_checkpointing", Subject::memory, &C::gradient_checkpointing, "Compute all blocks twice to save memory",
      {.fixed = false});
  add("checkpoint_blocks", Subject::memory, &C::checkpoint_blocks,
      "How many blocks are computed twice, those first that free the most for it; or all",
      {.fixed = false, .item = "N|all"});
  add("checkpoints_on_host", Subject::memory, &C::checkpoints_on_host,
      "Blocks that are computed twice keep their inputs in the host's memory until then", {.fixed = false});
  add("stream_blocks", Subject::memory, &C::stream_blocks,
      "How many blocks keep their frozen weights in the host's memory, from which they come while others run; or all",
      {.fixed = false, .item = "N|all"});
  add("stream_text_encoder", Subject::memory, &C::stream_text_encoder,
      "Keep T5's weights in the host's memory, from which they come block by block",
      {.fixed = false, .kind = ModelKind::pictures});
  add("host_memory", Subject::memory, &C::host_memory,
      "The most of the host's memory that weights and inputs of blocks may take there, page-locked [60 % of what is "
      "free; weights beyond that lie in ordinary memory, from which they come more slowly, in 80 % at most]",
      {.fixed = false, .item = "SIZE"});
  add("device", Subject::memory, &C::device, "auto, cpu, cuda or cuda:N; auto is the first CUDA device, or the CPU",
      {.fixed = false, .item = "DEVICE"});
  add("gpus", Subject::memory, &C::gpus,
      "Train on several CUDA devices of this machine, each on its share of a step: how many, all, or their numbers",
      {.fixed = false, .item = "N|all|0,2"});
  add("tf32", Subject::memory, &C::tf32, "Lets a GPU round the factors of f32 products to 10 bits, which is faster");
  add("no_graph", Subject::memory, &C::no_graph,
      "Launch each kernel of a step from the host instead of replaying the step as one CUDA graph", {.fixed = false});
  add("metadata_title", Subject::output, &C::metadata_title, "Title in a LoRA's file [--name]",
      {.fixed = false, .kind = ModelKind::pictures});
  add("metadata_author", Subject::output, &C::metadata_author, "Author in a LoRA's file",
      {.fixed = false, .kind = ModelKind::pictures});
  add("metadata_description", Subject::output, &C::metadata_description, "Description in a LoRA's file",
      {.fixed = false, .kind = ModelKind::pictures});
  add("metadata_license", Subject::output, &C::metadata_license, "License in a LoRA's file",
      {.fixed = false, .kind = ModelKind::pictures});
  add("metadata_tags", Subject::output, &C::metadata_tags, "Tags in a LoRA's file, with commas between them",
      {.fixed = false, .kind = ModelKind::pictures});
  add("metadata_trigger_phrase", Subject::output, &C::metadata_trigger_phrase,
      "Words in a LoRA's file that a prompt needs", {.fixed = false, .kind = ModelKind::pictures});
  add("metadata_usage_hint", Subject::output, &C::metadata_usage_hint, "Hint in a LoRA's file on its use",
      {.fixed = false, .kind = ModelKind::pictures});
  add("training_comment", Subject::output, &C::training_comment, "Comment in a LoRA's file on its training",
      {.fixed = false, .kind = ModelKind::pictures});
  add("no_metadata", Subject::output, &C::no_metadata,
      "A LoRA's file tells its network and modelspec.* alone, and nothing of the run",
      {.fixed = false, .kind = ModelKind::pictures});
  add("save_every", Subject::output, &C::save_every, "Also save each so many steps; 0: at the end only",
      {.fixed = false});
  add("save_every_epochs", Subject::output, &C::save_every_epochs, "Also save each so many epochs", {.fixed = false});
  add("save_every_minutes", Subject::output, &C::save_every_minutes, "Also save each so many minutes",
      {.max = 1e6, .fixed = false});
  add("sample_prompts", Subject::output, &C::sample_prompts,
      "Text file of a prompt a line, each drawn or continued before the first step, behind the last and in between; "
      "with kohya's flags behind it: --n, --w, --h, --d, --l, --g, --s, --ss",
      {.fixed = false, .item = "FILE"});
  add("sample_every", Subject::output, &C::sample_every,
      "Steps from one such preview to the next; 0: when something is saved", {.fixed = false});
  add("sample_every_epochs", Subject::output, &C::sample_every_epochs, "Epochs likewise", {.fixed = false});
  add("keep_last", Subject::output, &C::keep_last, "How many of those saved on the way are kept, the newest; 0: all",
      {.fixed = false});
  add("state_every_minutes", Subject::output, &C::state_every_minutes,
      "Also save where the run stands, for --resume, each so many minutes; 0: does not [10; with --train full "
      "0]",
      {.max = 1e6, .fixed = false});
  add("resume", Subject::output, &C::resume, "Go on from the state in --output", {.fixed = false});
  return all;
}

}  // namespace

std::string float_text(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string toml_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      quoted += {'\\', c};
    else if (uint8_t(c) < 0x20 || c == 0x7f)
      quoted += fmt::format("\\u{:04X}", uint8_t(c));
    else
      quoted += c;
  }
  return quoted + '"';
}

std::vector<std::string_view> split_names(std::string_view names) {
  std::vector<std::string_view> all;
  for (size_t begin = 0; begin <= names.size(); begin += all.back().size() + 1)
    all.push_back(names.substr(begin, names.find('|', begin) - begin));
  return all;
}

std::string TrainOption::flag() const { return flag_of(key); }

std::string_view TrainOption::type() const {
  static const TrainConfig any;
  return visit_member(any, member, [this](const auto& value) -> std::string_view {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_enum_v<T>)
      return names_of(value);
    else if constexpr (std::is_same_v<T, int64_t>)
      return traits.item.empty() ? "INT" : traits.item;
    else if constexpr (std::is_same_v<T, double>)
      return "NUMBER";
    else if constexpr (std::is_same_v<T, bool>)
      return "true or false";
    else if constexpr (std::is_same_v<T, std::string>)
      return traits.item.empty() ? "TEXT" : traits.item;
    else
      return traits.item;
  });
}

bool TrainOption::is_by_pattern() const { return traits.item == kNumbers || traits.item == kIntegers; }
bool TrainOption::is_bool() const { return std::holds_alternative<bool TrainConfig::*>(member); }
bool TrainOption::is_switch() const { return is_bool() && toml(TrainConfig()) == "false"; }
bool TrainOption::is_list() const {
  return std::holds_alternative<std::vector<std::string> TrainConfig::*>(member) ||
         std::holds_alternative<std::vector<Resolution> TrainConfig::*>(member) ||
         std::holds_alternative<std::vector<double> TrainConfig::*>(member);
}

std::string TrainOption::toml(const TrainConfig& config) const {
  return visit_member(config, member, [](const auto& value) { return toml_value(value); });
}

std::string TrainOption::flags() const {
  std::string names = flag();
  for (const TrainAlias& alias : train_aliases())
    if (alias.key == key) names += "," + flag_of(alias.spelling);
  return names;
}

void TrainOption::set(TrainConfig& config, const std::vector<std::string>& words) const {
  if (is_list()) {
    for (const std::string& word : words) check_usage(!word.empty(), "{}: expected {}, found ''", flag(), traits.item);
  } else {
    check_usage(words.size() == 1 || is_by_pattern(), "{}: expected one value, found {}", flag(), words.size());
  }
  set(config, words, flag());
}

void TrainOption::copy(const TrainConfig& from, TrainConfig& to) const {
  std::visit([&](auto pointer) { to.*pointer = from.*pointer; }, member);
}

// A list takes all words, and numbers by pattern do; any other setting the one that there is.
void TrainOption::set(TrainConfig& config, const std::vector<std::string>& words, const std::string& where) const {
  visit_member(config, member, [&](auto& value) {
    if constexpr (
        requires { value.clear(), value.front(), value.emplace_back(); } || requires { value.others; })
      set_words(value, traits, words, where);
    else
      set_value(value, traits, words.front(), where);
  });
}

const std::vector<TrainOption>& train_options() {
  static const std::vector<TrainOption> all = listed_options();
  return all;
}

// Of kohya-ss/sd-scripts, library/train_util.py, train_network.py and library/config_util.py.
std::span<const TrainAlias> train_aliases() {
  static constexpr TrainAlias kAll[] = {{"pretrained_model_name_or_path", "model"},
                                        {"t5xxl", "t5"},
                                        {"t5xxl_max_token_length", "t5_tokens"},
                                        {"apply_t5_attn_mask", "t5_mask"},
                                        {"output_dir", "output"},
                                        {"output_name", "name"},
                                        {"network_dim", "rank"},
                                        {"network_alpha", "alpha"},
                                        {"network_dropout", "lora_dropout"},
                                        {"network_weights", "from"},
                                        {"loraplus_lr_ratio", "lora_plus"},
                                        {"max_train_steps", "steps"},
                                        {"max_train_epochs", "epochs"},
                                        {"train_batch_size", "batch_size"},
                                        {"gradient_accumulation_steps", "accumulate"},
                                        {"learning_rate", "lr"},
                                        {"lr_scheduler", "lr_schedule"},
                                        {"lr_warmup_steps", "warmup"},
                                        {"caption_dropout_rate", "caption_dropout"},
                                        {"bucket_reso_steps", "bucket_step"},
                                        {"bucket_no_upscale", "no_upscale"},
                                        {"save_every_n_steps", "save_every"},
                                        {"save_every_n_epochs", "save_every_epochs"},
                                        {"validate_every_n_steps", "val_every"},
                                        {"validate_every_n_epochs", "val_every_epochs"},
                                        {"class_tokens", "default_caption"},
                                        {"sample_every_n_steps", "sample_every"},
                                        {"sample_every_n_epochs", "sample_every_epochs"}};
  return kAll;
}

const TrainOption* find_option(std::string_view key) {
  for (const TrainAlias& alias : train_aliases())
    if (alias.spelling == key) key = alias.key;
  const auto found = std::ranges::find(train_options(), key, &TrainOption::key);
  return found == train_options().end() ? nullptr : &*found;
}

const TrainOption& option_named(std::string_view key) {
  const TrainOption* option = find_option(key);
  check(option, "{}: a table of Wick names a setting that there is not; this is a fault of Wick", key);
  return *option;
}

namespace {

// One that is set, or null.
const char* lokr_flag(const TrainConfig& config) {
  return config.lokr_full             ? "--lokr-full"
         : config.lokr_decompose_both ? "--lokr-decompose-both"
         : config.lokr_unbalanced     ? "--lokr-unbalanced"
                                      : nullptr;
}

void resolve_lora(TrainConfig& config) {
  const bool sized = config.rank.value > 0 || !config.rank.others.empty() || config.alpha.value > 0 ||
                     !config.alpha.others.empty() || config.conv_rank > 0 || config.rslora;
  if (!config.from.empty()) {
    check_usage(config.train == TrainMode::lora, "--from: goes on with a LoRA; expected --train lora, found {}",
                name_of(config.train));
    check_usage(config.targets.empty() && !sized && config.adapter == AdapterKind::lora && config.lokr_factor == 0 &&
                    !lokr_flag(config) && !config.split_qkv && !config.dora_on_output,
                "--from {}: its kind, modules, ranks and alphas are the file's; expected no --adapter, --targets, "
                "--rank, --alpha, --conv-rank, --split-qkv, --dora-on-output, --rslora or flag of LoKr beside it",
                config.from);
    return;
  }
  if (config.rank.value == 0) config.rank.value = TrainConfig::kRank;
  if (config.alpha.value == 0 && config.rank.others.empty()) config.alpha.value = double(config.rank.value);
  check_usage(config.conv_alpha == 0 || config.conv_rank > 0, "--conv-alpha: expected a --conv-rank, found none");
  const bool is_lokr = without_magnitudes(config.adapter) == AdapterKind::lokr;
  check_usage(config.lokr_factor == 0 || is_lokr, "--lokr-factor: expected --adapter lokr with it, found {}",
              name_of(config.adapter));
  check_usage(!lokr_flag(config) || is_lokr, "{}: expected --adapter lokr with it, found {}",
              lokr_flag(config) ? lokr_flag(config) : "", name_of(config.adapter));
  check_usage(!config.dora_on_output || has_magnitudes(config.adapter),
              "--dora-on-output: expected --adapter dora, dora-loha or dora-lokr with it, found {}",
              name_of(config.adapter));
  if (config.adapter == AdapterKind::lora) return;
  const std::string_view kind = name_of(config.adapter);
  check_usage(config.train == TrainMode::lora, "--adapter {}: there is no adapter; --train is {}", kind,
              name_of(config.train));
  for (const auto& [flag, value] : {std::pair("--lora-dropout", config.lora_dropout),
                                    {"--rank-dropout", config.rank_dropout},
                                    {"--module-dropout", config.module_dropout},
                                    {"--scale-weight-norms", config.scale_weight_norms}})
    check_usage(value == 0, "{}: is for --adapter lora; expected 0 with {}, found {}", flag, kind, value);
}

// Settings that some optimizers alone have begin so.
struct OptimizerPrefix {
  std::string_view prefix, expected;
  bool (*is_of)(OptimizerKind);
};
constexpr OptimizerPrefix kOptimizerPrefixes[] = {
    {"prodigy_", "prodigy", [](OptimizerKind kind) { return kind == OptimizerKind::prodigy; }},
    {"schedule_free_", "schedule-free or radam-schedule-free", is_schedule_free},
    {"adafactor_", "adafactor", [](OptimizerKind kind) { return kind == OptimizerKind::adafactor; }}};

void check_optimizer_arguments(const TrainConfig& config) {
  static const TrainConfig defaults;
  const OptimizerKind kind = config.optimizer;
  const std::string_view name = name_of(kind);
  for (const TrainOption& option : train_options())
    for (const OptimizerPrefix& row : kOptimizerPrefixes)
      check_usage(
          !option.key.starts_with(row.prefix) || row.is_of(kind) || option.toml(config) == option.toml(defaults),
          "{}: expected --optimizer {} with it, found {}", option.flag(), row.expected, name);
  const bool is_prodigy = kind == OptimizerKind::prodigy, is_adafactor = kind == OptimizerKind::adafactor;
  const bool is_lion = kind == OptimizerKind::lion || kind == OptimizerKind::lion8bit;
  const size_t betas = config.betas.size(), eps = config.eps.size();
  check_usage(betas == 0 || !is_adafactor, "--betas: --optimizer adafactor has none; expected none, found {}", betas);
  check_usage(betas == 0 || betas == 2 || (is_prodigy && betas == 3), "--betas: --optimizer {} has {}; found {}", name,
              is_prodigy ? "two or three" : "two", betas);
  check_usage(eps == 0 || !is_lion, "--eps: --optimizer {} has none; expected none, found {}", name, eps);
  check_usage(eps <= (is_adafactor ? 2 : 1), "--eps: --optimizer {} has {}; found {}", name,
              is_adafactor ? "one or two" : "one", eps);
  check_usage(config.prodigy_growth_rate == 0 || config.prodigy_growth_rate >= 1,
              "--prodigy-growth-rate: expected 0, or a number of at least 1, found {}", config.prodigy_growth_rate);
  check_usage(!is_schedule_free(kind) || betas == 0 || config.betas[0] > 0,
              "--betas: --optimizer {} averages by the first one; expected a number above 0, found 0", name);
  // Below, RAdam's average is never of more than four gradients.
  check_usage(kind != OptimizerKind::radam_schedule_free || betas == 0 || config.betas[1] > 0.6,
              "--betas: --optimizer {} never moves at a second one of 0.6 or less; found {}", name,
              betas == 0 ? 0 : config.betas[1]);
}

bool is_one(const ByPattern<double>& ratio) { return ratio.value == 1 && ratio.others.empty(); }

// Optimizers that have a rate of their own take no schedule.
void check_optimizer_rate(const TrainConfig& config) {
  const std::string_view name = name_of(config.optimizer);
  check_usage(config.optimizer != OptimizerKind::prodigy || (config.lr.others.empty() && is_one(config.lora_plus)),
              "--optimizer prodigy: finds one rate for all; expected --lr without patterns and no --lora-plus");
  check_usage(!config.adafactor_warmup_init || config.adafactor_relative_step,
              "--adafactor-warmup-init: expected --adafactor-relative-step with it");
  if (config.adafactor_relative_step)
    check_usage(config.lr_schedule == LrSchedule::constant && config.warmup.value == 0,
                "--adafactor-relative-step: stands for a schedule; expected --lr-schedule constant and no --warmup, "
                "found {} and {}",
                name_of(config.lr_schedule), config.warmup.value);
  if (!is_schedule_free(config.optimizer)) return;
  check_usage(config.lr_schedule == LrSchedule::constant,
              "--lr-schedule: --optimizer {} stands for a schedule; expected constant, found {}", name,
              name_of(config.lr_schedule));
  check_usage(config.ema == 0, "--ema: --optimizer {} averages the weights itself; expected 0, found {}", name,
              config.ema);
  check_usage(config.scale_weight_norms == 0,
              "--scale-weight-norms: --optimizer {} averages the weights that this would change; expected 0, found {}",
              name, config.scale_weight_norms);
}

}  // namespace

void resolve(TrainConfig& config, const std::vector<std::string_view>& needed) {
  for (const TrainOption& option : train_options())
    if (std::find(needed.begin(), needed.end(), option.key) != needed.end() &&
        (option.key != "model" || config.transformer.empty()))
      check_usage((option.toml(config) != "\"\"" && option.toml(config) != "[]") ||
                      (option.key == "dataset" && !config.datasets.empty()),
                  "{} is missing: {}", option.flag(), option.help);
  if (!config.dataset.empty()) config.datasets.clear();  // a flag comes before a file
  if (config.name.empty()) config.name = config.train == TrainMode::lora ? "lora" : "model";
  check_name(config.name);
  check_usage(config.steps == 0 || config.epochs == 0, "--steps and --epochs: expected one of them, found {} and {}",
              config.steps, config.epochs);
  if (config.epochs == 0 && config.steps == 0) config.steps = TrainConfig::kSteps;
  if (config.state_every_minutes < 0) config.state_every_minutes = config.train == TrainMode::full ? 0 : 10;
  resolve_lora(config);
  if (config.lr.value == 0) config.lr.value = default_lr(config);
  check_optimizer_arguments(config);
  check_optimizer_rate(config);
  const std::string_view mode = name_of(config.train);
  check_usage(config.train == TrainMode::lora || config.targets.empty(),
              "--targets: only a LoRA has targets; --train is {}", mode);
  for (const auto& [flag, value] : {std::pair("--lora-dropout", config.lora_dropout),
                                    {"--rank-dropout", config.rank_dropout},
                                    {"--module-dropout", config.module_dropout},
                                    {"--scale-weight-norms", config.scale_weight_norms}})
    check_usage(config.train == TrainMode::lora || value == 0, "{}: there is no LoRA; --train is {}", flag, mode);
  check_usage(config.train == TrainMode::full || !config.from_scratch,
              "--from-scratch: only --train full begins with random weights; --train is {}", mode);
  if (config.gradient_checkpointing && config.checkpoint_blocks == "0") config.checkpoint_blocks = "all";
  parse_blocks("--checkpoint-blocks", config.checkpoint_blocks);  // is understood
  parse_blocks("--stream-blocks", config.stream_blocks);
  asked_memory(config);  // is understood
  check_usage(!config.checkpoints_on_host || config.checkpoint_blocks != "0" || !config.memory.empty(),
              "--checkpoints-on-host: is for blocks that are computed twice; expected --checkpoint-blocks with it");
  host_limit(config.host_memory);  // is understood
  config.gradient_checkpointing = config.checkpoint_blocks == "all";
  check_usage(config.train == TrainMode::lora || config.quantize == Quantize::none,
              "--quantize: is for frozen matrices; --train {} has none", mode);
  check_usage(config.train == TrainMode::lora || config.stream_blocks == "0",
              "--stream-blocks: is for frozen weights; --train {} changes them", mode);
  if (config.fp8_compute) {
    check_usage(config.train == TrainMode::lora, "--fp8-compute: is for frozen matrices; --train {} has none", mode);
    check_fp8_compute(config.quantize == Quantize::none ? "" : name_of(config.quantize));
    config.quantize = Quantize::fp8;
  }
  if (config.quantize != Quantize::none && config.dtype == DType::f32) config.dtype = DType::bf16;
  check_usage(config.quantize != Quantize::none || !config.memory.empty() || config.keep_precision.empty(),
              "--keep-precision: expected a --quantize or --memory with it");
  check_usage(!config.sample_prompts.empty() || (config.sample_every == 0 && config.sample_every_epochs == 0),
              "--sample-every: says when previews are made; expected their --sample-prompts with it");
  check_usage(config.sample_prompts.empty() || config.train != TrainMode::vae,
              "--sample-prompts: --train vae has no denoiser to draw with; expected none");
  check_usage(config.max_token_length % TrainConfig::kClipTokens == 0,
              "--max-token-length: expected 75, 150 or 225, found {}", config.max_token_length);
  config.masked_loss = config.masked_loss || config.alpha_mask;
  check_usage(config.val.empty() || config.validation_split == 0, "--val and --validation-split: expected one of them");
  check_usage(!config.alpha_mask || config.conditioning_data_dir.empty(),
              "--alpha-mask and --conditioning-data-dir: expected one of them");
  check_usage(config.caption_extension == "auto" || config.caption_extension.starts_with('.'),
              "--caption-extension: expected auto or an ending like .txt, found '{}'", config.caption_extension);
  check_usage(config.gpus.empty() || config.device == "auto" || config.device == "cuda",
              "--gpus {} and --device {}: expected one of them", config.gpus, config.device);
  check_usage(is_device_name(config.device), "--device: expected auto, cpu, cuda or cuda:N, found '{}'", config.device);
  const auto absolute = [](std::string& path) {
    if (!path.empty()) path = std::filesystem::absolute(path).lexically_normal().string();
  };
  for (auto* paths : {&config.dataset, &config.val})
    for (std::string& path : *paths) absolute(path);
  if (config.cache != "none") absolute(config.cache);
  for (std::string* path :
       {&config.output, &config.from, &config.conditioning_data_dir, &config.reg_data_dir, &config.sample_prompts})
    absolute(*path);
  std::error_code ignored;
  if (std::filesystem::exists(config.model, ignored)) absolute(config.model);
  for (const auto& [part, member] : part_members()) absolute(config.*member);
}

std::vector<std::optional<size_t>> asked_memory(const TrainConfig& config) {
  std::vector<std::optional<size_t>> sizes;
  const std::string& text = config.memory;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    sizes.push_back(parse_memory(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return sizes;
}

std::optional<DType> quantized_dtype(const TrainConfig& config) {
  switch (config.quantize) {
    case Quantize::none:
      return {};
    case Quantize::fp8:
      return config.fp8_compute ? DType::fp8_product : DType::fp8;
    case Quantize::fp8_block:
      return DType::fp8_block;
    case Quantize::int8:
      return DType::int8;
    case Quantize::nf4:
      return DType::nf4;
    case Quantize::nf4_double:
      return DType::nf4_double;
    case Quantize::q8_0:
      return DType::q8_0;
    case Quantize::q6_k:
      return DType::q6_k;
    case Quantize::q5_k:
      return DType::q5_k;
    case Quantize::q4_k:
      return DType::q4_k;
    case Quantize::q4_0:
      return DType::q4_0;
  }
  return {};
}

ModelFiles model_files(const TrainConfig& config) {
  ModelFiles files{.model = config.model};
  for (const auto& [part, member] : part_members())
    if (!(config.*member).empty()) files.parts[part.name] = config.*member;
  return files;
}

void check_kind(const TrainConfig& config, ModelKind kind) {
  static const TrainConfig defaults;
  check_usage(kind == ModelKind::pictures || config.datasets.empty(),
              "[[datasets]]: names folders of pictures; {} is a model of text", config.model);
  for (const TrainOption& option : train_options())
    check_usage(!option.traits.kind || option.traits.kind == kind || option.toml(config) == option.toml(defaults),
                "{}: {} is a model of {}, which has no such setting", option.flag(), config.model,
                kind == ModelKind::text ? "text" : "pictures");
}

}  // namespace wick
