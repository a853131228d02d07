#include "wick/train/previews.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "wick/autograd/tape.h"
#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/pipelines/infotext.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/train/captions.h"

namespace wick {
namespace {

// Pixels: larger pictures are decoded in squares of this side, which keeps decoding below what a step takes.
constexpr int64_t kTile = 512;
constexpr int64_t kTokens = 64;  // of a text

// kohya's names of samplers that Wick has under another.
constexpr std::pair<std::string_view, std::string_view> kTheirs[] = {{"k_euler", "euler"},
                                                                     {"euler_a", "euler-ancestral"},
                                                                     {"k_euler_a", "euler-ancestral"},
                                                                     {"dpmsolver++", "dpmpp-2m"}};

SamplerKind sampler_of(const SamplePrompt& prompt, std::string_view name) {
  if (const auto* theirs = std::ranges::find(kTheirs, name, &std::pair<std::string_view, std::string_view>::first);
      theirs != std::end(kTheirs))
    name = theirs->second;
  std::string known;
  for (const auto& [own, kind] : kSamplers) {
    if (own == name) return kind;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", own);
  }
  fail_usage("{}: --ss: expected one of {}, found {}", prompt.where, known, quote(name));
}

// The side of a picture that is not told: the shorter one of the run's largest resolution.
int64_t usual_side(const TrainConfig& config, const LatentSpace& space) {
  const int64_t side = std::ranges::max(config.resolution, {}, &Resolution::shorter).shorter();
  return std::max((side == 0 ? space.native : side) / space.side_step, int64_t{1}) * space.side_step;
}

ImageRequest request_of(const SamplePrompt& prompt, const TrainConfig& config, const Diffusion& model) {
  const LatentSpace space = model.latents();
  DrawingDefaults made_for = model.drawing_defaults();
  if (prompt.sampler) made_for = drawn_by(sampler_of(prompt, *prompt.sampler), made_for);
  if (prompt.noise_sampler && !model.process().is_flow())
    made_for = drawn_by(sampler_of(prompt, *prompt.noise_sampler), made_for);
  check_usage(!prompt.guidance || made_for.guidance,
              "{}: --g: this model is not told a guidance; --l is the scale of "
              "guidance by --n",
              prompt.where);
  if (prompt.scale && made_for.guidance) made_for.guidance = float(*prompt.scale);
  if (prompt.scale && !made_for.guidance) made_for.cfg = float(std::max(*prompt.scale, 1.0));
  ImageRequest request{.prompt = prompt.prompt,
                       .negative = prompt.negative,
                       .width = prompt.width.value_or(usual_side(config, space)),
                       .height = prompt.height.value_or(usual_side(config, space)),
                       .cfg = float(prompt.cfg.value_or(made_for.cfg)),
                       .guidance = float(prompt.guidance.value_or(double(made_for.guidance.value_or(1)))),
                       .sampling = {.kind = made_for.sampler, .steps = prompt.steps.value_or(made_for.steps)},
                       .seed = prompt.seed.value_or(uint64_t(config.seed)),
                       .tile = kTile / space.side_step * space.side_step};
  TextToImage::check_side((prompt.where + ": --w").c_str(), request.width, space);
  TextToImage::check_side((prompt.where + ": --h").c_str(), request.height, space);
  check_usage(request.sampling.steps <= model.process().train_steps(), "{}: --s: expected at most {}, found {}",
              prompt.where, model.process().train_steps(), request.sampling.steps);
  try {
    model.process().sampler(request.sampling, latent_shape(request, space));
  } catch (const Error& e) {
    fail_usage("{}: {}", prompt.where, e.what());
  }
  return request;
}

int64_t context_of(const TextRequest& request) { return int64_t(request.prompt.size()) + request.max_tokens; }

}  // namespace

PicturePreviews::PicturePreviews(const TrainConfig& config, const Diffusion& model)
    : model_(model),
      model_path_(config.model.empty() ? config.transformer : config.model),
      t5_mask_(config.t5_mask),
      prediction_(config.prediction) {
  for (const SamplePrompt& prompt : sample_prompts(config)) requests_.push_back(request_of(prompt, config, model));
}

void PicturePreviews::encode(EncodingCache* cache, const std::function<void()>& before) {
  const TapePause frozen;
  const MemoryScope scope(Purpose::data);
  const auto add = [&](const TextToImage::Text& text) {
    if (encoded_.contains(text)) return;
    const auto make = [&] {
      before();
      return model_.encode_text(text.is_negative ? model_.negative(text.text) : model_.caption(*text.text));
    };
    const std::string key = !text.is_negative ? "prompt " + *text.text
                            : text.text       ? "negative " + *text.text
                                              : "no negative";
    encoded_.emplace(text, cache ? cache->get(key, make) : make());
  };
  for (const ImageRequest& request : requests_) {
    if (request.cfg != 1) add({true, request.negative});
    add({false, request.prompt});
  }
}

Preview PicturePreviews::draw(size_t index, const OnPreviewStep& on_step) {
  const ImageRequest& request = requests_[index];
  TextToImage text_to_image(model_);
  text_to_image.remember(encoded_);
  const auto report = [&](int64_t step) { on_step(step, request.sampling.steps); };
  return {.image = text_to_image(request, report), .texts = texts_of(request), .text = {}};
}

void PicturePreviews::outline() {
  for (const ImageRequest& request : requests_) {
    TextToImage text_to_image(model_);
    text_to_image.remember(encoded_);
    text_to_image.draw({shortened(request)});
  }
}

// As PictureSettings of the command line reads them.
ImageTexts PicturePreviews::texts_of(const ImageRequest& request) const {
  nlohmann::json settings{{"version", WICK_VERSION},
                          {"model", model_path_},
                          {"prompt", nlohmann::json::array({request.prompt})},
                          {"seed", nlohmann::json::array({request.seed})},
                          {"width", request.width},
                          {"height", request.height},
                          {"steps", request.sampling.steps},
                          {"cfg", nlohmann::json::parse(fmt::format("{}", request.cfg))},
                          {"sampler", name_of(request.sampling.kind)},
                          {"prompt-syntax", "plain"},
                          {"vae-tile", request.tile}};
  if (request.negative) settings["negative"] = *request.negative;
  if (model_.drawing_defaults().guidance)
    settings["guidance"] = nlohmann::json::parse(fmt::format("{}", request.guidance));
  if (model_.t5_tokens() > 0) settings["t5-tokens"] = model_.t5_tokens(), settings["t5-mask"] = t5_mask_;
  if (prediction_ != PredictionSetting::automatic) settings["prediction"] = name_of(prediction_);
  return {{"parameters", infotext_of(settings, {})},
          {"wick", settings.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace)}};
}

TextPreviews::TextPreviews(const TrainConfig& config, const std::filesystem::path& model, bool is_chat)
    : encoder_(model, text_reading(config)) {
  const int64_t positions = LlamaConfig::read(model).positions;
  for (const SamplePrompt& prompt : text_prompts(config)) {
    TextRequest request{.prompt = encoder_.prompt(prompt.prompt, is_chat),
                        .max_tokens = prompt.steps.value_or(kTokens),
                        .sampling = {.temperature = 0}};
    check_usage(!request.prompt.empty(), "{}: expected a prompt of a token at least, found none", prompt.where);
    const int64_t length = int64_t(request.prompt.size());
    check_usage(length < positions, "{}: takes {}, and the model has {}; expected a shorter prompt", prompt.where,
                count_of(length, "token"), count_of(positions, "position"));
    request.max_tokens = std::min(request.max_tokens, positions - length);
    requests_.push_back(std::move(request));
  }
}

Preview TextPreviews::write(const Llama& model, size_t index, const OnPreviewStep& on_step) const {
  const LanguageModel language{model, encoder_.tokenizer()};
  TextRequest request = requests_[index];
  request.stop_ids = language.stop_ids();
  int64_t pieces = 0;
  const auto report = [&](std::string_view) {
    on_step(std::min(++pieces, request.max_tokens), request.max_tokens);
    return true;
  };
  Generator generator(model, context_of(request));
  return {.image = {}, .texts = {}, .text = generator(request, language.stream(), report).text};
}

void TextPreviews::outline(const Llama& model) const {
  for (const TextRequest& request : requests_) {
    TextDecoder decoder(model, context_of(request));
    decoder.read(std::span(request.prompt).first(std::min(request.prompt.size(), size_t(TextDecoder::kPiece))));
    decoder.truncate(0);
    decoder.step();
  }
}

std::vector<SamplePrompt> sample_prompts(const TrainConfig& config) {
  if (config.sample_prompts.empty()) return {};
  std::vector<SamplePrompt> prompts = read_sample_prompts(config.sample_prompts);
  for (SamplePrompt& prompt : prompts) {
    for (std::string* text : {&prompt.line, &prompt.prompt})
      *text = with_trigger(std::move(*text), config.trigger_word);
    if (prompt.negative) prompt.negative = with_trigger(std::move(*prompt.negative), config.trigger_word);
  }
  return prompts;
}

std::vector<SamplePrompt> text_prompts(const TrainConfig& config) {
  std::vector<SamplePrompt> prompts = sample_prompts(config);
  for (const SamplePrompt& prompt : prompts)
    for (const std::string& flag : prompt.flags())
      check_usage(flag == "--s",
                  "{}: {}: is for pictures; a language model's prompt takes --s alone, its tokens at the most",
                  prompt.where, flag);
  return prompts;
}

}  // namespace wick
