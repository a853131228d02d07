#include "wick/pipelines/t5_texts.h"

#include <algorithm>

#include "wick/backend/views.h"
#include "wick/io/count.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/text_weights.h"

namespace wick {
namespace {

int64_t length_of(const std::filesystem::path& tokenizer, int64_t made_for) {
  const std::filesystem::path file = tokenizer / "tokenizer_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return made_for;
  const double most = Config::read(file).number_or("model_max_length", double(made_for), {1, 1e300});
  return most < double(made_for) ? int64_t(most) : made_for;
}

// Padding that stands before a row's text.
int64_t padding_of(const Tensor& ids, int64_t row) {
  const int64_t* first = ids.data<int64_t>() + row * ids.dim(1);
  return std::find_if(first, first + ids.dim(1), [](int64_t id) { return id != T5Tokenizer::kPad; }) - first;
}

}  // namespace

T5Texts::T5Texts(const Checkpoint& encoder, std::filesystem::path tokenizer, const ReadingOptions& options,
                 int64_t made_for)
    : config_(T5Config::read(encoder)),
      tokenizer_path_(std::move(tokenizer)),
      options_(options.t5),
      syntax_(options.syntax) {
  check_usage(!options_.mask || syntax_ == PromptSyntax::plain,
              "--t5-mask: expected no --prompt-syntax comfyui with it, because ComfyUI hides no padding of T5's");
  if (options_.tokens == 0) options_.tokens = length_of(tokenizer_path_, made_for);
}

const T5Tokenizer& T5Texts::tokenizer() const {
  if (tokenizer_) return *tokenizer_;
  tokenizer_.emplace(T5Tokenizer::load(tokenizer_path_));
  check_vocabulary(tokenizer_path_, tokenizer_->vocabulary(), config_.vocab);
  return *tokenizer_;
}

TextLength T5Texts::length(const std::string& text) const {
  TextLength length{.tokens = 0, .limit = options_.tokens - 1};
  const std::vector<int64_t> ids =
      syntax_ == PromptSyntax::plain ? plain_ids(text) : t5_ids(weighted_texts(text, words()), tokenizer()).ids;
  length.tokens = int64_t(ids.size()) - (syntax_ == PromptSyntax::plain ? 0 : 1);
  return length;
}

std::vector<LearnedWord> T5Texts::words() const { return learned_words(adapter_, "t5", config_.vocab); }

std::vector<int64_t> T5Texts::plain_ids(const std::string& text) const {
  return ids_with_words(text, words(), [this](const std::string& part) { return tokenizer().encode_bare(part); });
}

void T5Texts::load(const Scope& s, const DiffusionOptions& options) {
  outline_ = s.weights().is_outline();
  adapter_ = s.adapter();
  BlockSchedule blocks = BlockSchedule::recomputing_all(options.block_schedule.recomputes_any());
  if (options.stream_text_encoder)
    blocks.stream(s.weights().stream(
        BlockSchedule::kAll, [&](const Weights& shapes) { T5Encoder(Scope(shapes, "t5"), config_); },
        options.block_schedule.masters("t5")));
  encoder_.emplace(s, config_, blocks);
  s.weights().read_deferred();
}

NamedTensors T5Texts::ids(const std::string& text) const {
  const Shape shape = {1, options_.tokens};
  if (syntax_ == PromptSyntax::comfyui) {
    auto [ids, weights] = t5_ids(weighted_texts(text, words()), tokenizer());
    check_usage(ids.size() <= size_t(options_.tokens),
                "--t5-tokens: a prompt takes {} with its end, and ComfyUI cuts none; expected as many, found {}",
                count_of(ids.size(), "token"), options_.tokens);
    ids.resize(size_t(options_.tokens), T5Tokenizer::kPad);
    weights.resize(size_t(options_.tokens), 1);
    NamedTensors parts{{kTokens, Tensor::of(ids, shape)}};
    if (const Tensor given = weights_tensor(weights, shape)) parts.add(kWeights, given);
    return parts;
  }
  std::vector<int64_t> ids(static_cast<size_t>(options_.tokens));
  if (!outline_) {
    ids = tokenizer().framed(plain_ids(text), options_.tokens);
    if (options_.mask) std::rotate(ids.begin(), std::ranges::find(ids, tokenizer().end_id()) + 1, ids.end());
  }
  return {{kTokens, Tensor::of(ids, shape)}};
}

Tensor T5Texts::states(const NamedTensors& text) const {
  check(encoder_.has_value(), "encode_text: the model's T5 encoder was dropped");
  const Tensor& ids = text[kTokens];
  if (text.has(kWeights)) {
    const int64_t batch = ids.dim(0);
    const Tensor all = (*encoder_)(cat({ids, this->ids("")[kTokens]}, 0));
    return weighted(slice(all, 0, 0, batch), slice(all, 0, batch, batch + 1), text[kWeights]);
  }
  if (!options_.mask) return (*encoder_)(ids);
  const Tensor mask = full(ids.shape(), 1, DType::i64);
  for (int64_t row = 0; row < ids.dim(0); ++row)
    std::fill_n(mask.data<int64_t>() + row * ids.dim(1), padding_of(ids, row), 0);
  return (*encoder_)(ids, mask);
}

NamedTensors T5Texts::text_mask(const NamedTensors& ids, Memory& memory) const {
  if (!options_.mask) return {};
  return {{kFirstKey, full({1, 1}, float(padding_of(ids[kTokens], 0)), DType::i32, memory)}};
}

Tensor T5Texts::ranges(const NamedTensors& parts, int64_t tokens) {
  if (!parts.has(kFirstKey)) return {};
  const Tensor& first = parts[kFirstKey];
  const int64_t batch = first.dim(0);
  const Tensor all = Tensor::empty({batch, tokens, 2}, DType::i32, first.memory());
  all.backend().copy(part_of(all, 2, 0, 1), expand(reshape(first, {batch, 1, 1}), {batch, tokens, 1}));
  all.backend().fill(part_of(all, 2, 1, 1), float(tokens));
  return all;
}

}  // namespace wick
