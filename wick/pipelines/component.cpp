#include "wick/pipelines/component.h"

#include <fmt/ranges.h>

#include <cmath>
#include <memory>
#include <utility>

#include "wick/models/t5.h"
#include "wick/models/vae.h"
#include "wick/ops/ops.h"
#include "wick/text/clip_tokenizer.h"
#include "wick/text/shipped_tokenizer.h"
#include "wick/text/t5_tokenizer.h"

namespace wick {

const TensorInfo& ComponentInputs::info(const std::string& name) const {
  if (!file_.has(name)) {
    std::vector<std::string> found;
    for (const auto& [other, ignored] : file_.tensors()) found.push_back(other);
    fail("{}: has no tensor \"{}\"; it holds {}", file_.path().string(), name,
         found.empty() ? "none" : fmt::format("{}", fmt::join(found, ", ")));
  }
  return file_.tensors().at(name);
}

Tensor ComponentInputs::load(const std::string& name, const std::vector<Extent>& wanted) {
  const Shape& found = info(name).shape;
  std::vector<std::string> expected;
  bool fits = size_t(found.rank()) == wanted.size();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Extent& e = wanted[i];
    const int64_t size = fits ? found[int(i)] : 0;
    const auto known = letters_.find(e.letter);
    const bool open = !e.letter.empty() && known == letters_.end();
    const int64_t exact = e.letter.empty() ? e.size : open ? 0 : known->second;
    expected.push_back(!open        ? std::to_string(exact)
                       : e.size > 1 ? fmt::format("{} >= {}", e.letter, e.size)
                                    : e.letter);
    fits = fits && (open ? size >= e.size : size == exact);
  }
  check(fits, "{}: \"{}\" should have shape [{}], found {}", file_.path().string(), name, fmt::join(expected, ", "),
        found);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!wanted[i].letter.empty()) letters_.emplace(wanted[i].letter, found[int(i)]);
  return file_.load(name);
}

Tensor ComponentInputs::finite(const std::string& name, const Tensor& x) const {
  for (const float value : x.to_vector())
    if (!std::isfinite(value))
      fail("{}: \"{}\" should hold finite numbers, found {}", file_.path().string(), name, value);
  return x;
}

Tensor ComponentInputs::variable(const std::string& name, const std::vector<Extent>& shape) {
  const auto dtype = info(name).dtype;
  check(dtype && is_float(*dtype), "{}: \"{}\" should be F32, F16 or BF16, found {}", file_.path().string(), name,
        info(name).dtype_name);
  Tensor x = finite(name, cast(load(name, shape), DType::f32)).to(memory_);
  if (track_) variables_[name] = x = x.trainable();
  return x;
}

Tensor ComponentInputs::constant(const std::string& name, const std::vector<Extent>& shape) {
  const Tensor x = load(name, shape);
  return finite(name, Tensor::of(x.to_vector(), x.shape())).to(memory_);
}

Tensor ComponentInputs::whole(const std::string& name, const std::vector<Extent>& shape, int64_t least) {
  constexpr float kExact = 1 << 24;  // f32 has every whole number up to here
  const auto dtype = info(name).dtype;
  check(dtype == DType::i64 || dtype == DType::i32 || dtype == DType::f32,
        "{}: \"{}\" should be I64, I32 or F32, found {}", file_.path().string(), name, info(name).dtype_name);
  const Tensor x = load(name, shape);
  Tensor numbers;
  if (dtype == DType::f32) {
    std::vector<int64_t> rounded;
    for (const float value : x.to_vector()) {
      if (value != std::trunc(value) || !(std::abs(value) <= kExact))
        fail("{}: \"{}\" should hold whole numbers, found {}", file_.path().string(), name, value);
      rounded.push_back(int64_t(value));
    }
    numbers = Tensor::of(rounded, x.shape());
  } else {
    numbers = cast(x, DType::i64);
  }
  for (int64_t i = 0; i < numbers.numel(); ++i)
    if (const int64_t number = numbers.data<int64_t>()[i]; number < least)
      fail("{}: \"{}\" should hold numbers from {} on, found {}", file_.path().string(), name, least, number);
  return numbers;
}

Tensor ComponentInputs::ids(const std::string& name, const std::vector<Extent>& shape, int64_t vocabulary,
                            std::optional<int64_t> ignored) {
  Tensor ids = whole(name, shape);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t id = ids.data<int64_t>()[i];
    if (id != ignored && (id < 0 || id >= vocabulary))
      fail("{}: \"{}\" should hold ids from 0 to {}{}, found {}", file_.path().string(), name, vocabulary - 1,
           ignored ? fmt::format(", or {}", *ignored) : "", id);
  }
  return ids;
}

Tensor ComponentInputs::number(const std::string& name, int64_t batch, const NumberRange& range) {
  const Shape& found = info(name).shape;
  const bool is_for_all = found == Shape{} || found == Shape{1};
  const Tensor x =
      constant(name, is_for_all ? std::vector<Extent>(size_t(found.rank()), 1) : std::vector<Extent>{batch});
  for (const float value : x.to_vector())
    check(value >= range.min && value <= range.max, "{}: \"{}\" should hold numbers from {} to {}, found {}",
          file_.path().string(), name, range.min, range.max, value);
  return is_for_all ? clone(expand(x, {batch})) : x;
}

void ComponentInputs::refuse(const std::string& name, const std::string& why) const {
  check(!has(name), "{}: has a tensor \"{}\", but {}; leave it out", file_.path().string(), name, why);
}

void ComponentInputs::check_even(const std::string& name, std::initializer_list<const char*> letters) const {
  for (const char* letter : letters)
    check(extent(letter) % 2 == 0, "{}: \"{}\" should have even sides, found {} = {}", file_.path().string(), name,
          letter, extent(letter));
}

Tensors ComponentInputs::gradients(const Grads& grads) const {
  Tensors all;
  for (const auto& [name, x] : variables_) {
    const Tensor dx = grads[x];
    all[name] = dx ? dx : zeros(x.shape(), x.dtype(), x.memory());
  }
  return all;
}

std::function<Tensor(ComponentInputs&)> squared_error(const Tensor& y) {
  return [y](ComponentInputs& in) { return mse_loss(y, in.constant("target", {y.shape().begin(), y.shape().end()})); };
}

Scope ComponentSource::scope(const std::string& component) const {
  return scope(component, model.component(component).source());
}
Scope ComponentSource::scope(const std::string& component, const TensorSource& tensors) const {
  if (watch) {
    watch->sources[component] = tensors;
    TensorSource shapes = watched(tensors, watch->tensors[component]);
    shapes.has_values = false;
    return Scope(Weights(shapes, weights), component, adapter).watched(watch->sites);
  }
  return Scope(Weights(tensors, weights), component, adapter);
}

Component clip_component(const std::string& name, std::vector<std::string> lora_prefixes, ClipKind kind) {
  const auto load = [name, kind](const ComponentSource& source) -> ComponentRun {
    const ClipConfig config = ClipConfig::read(source.model.component(name), kind);
    const ClipText model(source.scope(name), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      const ClipOutput y = model(in.ids("input_ids", {"B", "T"}, model.ids()));
      return {{{"last_hidden_state", y.last}, {"penultimate_hidden_state", y.penultimate}, {"pooled", y.pooled}},
              squared_error(y.last)};
    };
  };
  return {name, load, std::move(lora_prefixes)};
}

Component t5_component(const std::string& name, std::vector<std::string> lora_prefixes) {
  const auto load = [name](const ComponentSource& source) -> ComponentRun {
    const T5Config config = T5Config::read(source.model.component(name));
    const T5Encoder model(source.scope(name), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      const Tensor ids = in.ids("input_ids", {"B", "T"}, model.ids());
      const Tensor mask = in.has("attention_mask") ? in.ids("attention_mask", {"B", "T"}, 2) : Tensor();
      const Tensor y = cast(model(ids, mask), DType::f32);
      return {{{"last_hidden_state", y}}, squared_error(y)};
    };
  };
  return {name, load, std::move(lora_prefixes)};
}

Component vae_encoder_component() {
  const auto load = [](const ComponentSource& source) -> ComponentRun {
    const VaeConfig config = VaeConfig::read(source.model.component("vae"));
    const VaeEncoder model(source.scope("vae"), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      const Tensor x = in.variable("sample", {"B", config.in_channels, {"H", config.factor()}, {"W", config.factor()}});
      const Gaussian y = model(to_channels_last(x));
      const Tensor mean = to_channels_first(y.mean);
      return {{{"mean", mean}, {"logvar", to_channels_first(y.logvar)}}, squared_error(mean)};
    };
  };
  return {"vae.encoder", load};
}

Component vae_decoder_component() {
  const auto load = [](const ComponentSource& source) -> ComponentRun {
    const VaeConfig config = VaeConfig::read(source.model.component("vae"));
    const VaeDecoder model(source.scope("vae"), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      const Tensor z = in.variable("latent", {"B", config.latent_channels, "h", "w"});
      const Tensor sample = to_channels_first(model(to_channels_last(z)));
      return {{{"sample", sample}}, squared_error(sample)};
    };
  };
  return {"vae.decoder", load};
}

std::filesystem::path tokenizer_path(const Checkpoint& model, const std::string& name, const std::string& shipped) {
  return model.is_assembled() && !model.has(name) ? shipped_tokenizer(shipped) : model.component(name).path();
}

void check_vocabulary(const std::filesystem::path& tokenizer, int64_t tokens, int64_t vocabulary) {
  check(tokens <= vocabulary,
        "{}: the tokenizer has {} tokens, and the text encoder knows {}: it is that of another model",
        tokenizer.string(), tokens, vocabulary);
}

ClipTokenizer load_clip_tokenizer(const Checkpoint& model, const std::string& name, const std::string& shipped,
                                  int64_t vocabulary) {
  const std::filesystem::path path = tokenizer_path(model, name, shipped);
  const ClipTokenizer tokenizer = ClipTokenizer::load(path);
  check_vocabulary(path, tokenizer.size(), vocabulary);
  const bool given_for_both =
      name == "tokenizer_2" && model.has(name) && model.has("tokenizer") && model.component("tokenizer").path() == path;
  return given_for_both ? tokenizer.padded_with(0) : tokenizer;
}

template <class T>
Component tokenizer_component(const std::string& name, const std::string& shipped,
                              std::vector<int64_t> (T::*encode)(std::string_view) const) {
  const auto load = [=](const Checkpoint& model) -> TextToIds {
    return [=, tokenizer = T::load(tokenizer_path(model, name, shipped))](const std::string& text) {
      return (tokenizer.*encode)(text);
    };
  };
  return {.name = name, .load_tokenizer = load};
}

Component clip_tokenizer_component(const std::string& name, const std::string& shipped) {
  return tokenizer_component<ClipTokenizer>(name, shipped, &ClipTokenizer::encode_whole);
}

Component t5_tokenizer_component(const std::string& name, const std::string& shipped) {
  return tokenizer_component<T5Tokenizer>(name, shipped, &T5Tokenizer::encode);
}

}  // namespace wick
