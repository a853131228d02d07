#include "wick/train/state.h"

#include <charconv>
#include <utility>

#include "wick/ops/shape.h"

namespace wick {
namespace {

constexpr const char* kFormat = "wick training state 2";
constexpr const char* kScalars = "optimizer";
constexpr std::string_view kRng = "rng.", kSame = "same.";  // prefixes of metadata keys

template <class T>
T number(const std::map<std::string, std::string>& metadata, const std::string& key, const std::string& source) {
  const auto found = metadata.find(key);
  check(found != metadata.end(), "{}: the metadata lacks '{}'; not a training state of Wick's", source, key);
  T value{};
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size(), "{}: metadata {}: expected a number, found '{}'",
        source, key, text);
  return value;
}

std::map<std::string, std::string> to_metadata(const TrainState& state) {
  std::map<std::string, std::string> metadata{{"format", kFormat},
                                              {"step", std::to_string(state.step)},
                                              {"epoch", std::to_string(state.epoch)},
                                              {"batch", std::to_string(state.batch)}};
  for (const auto& [stream, position] : state.rng) metadata[std::string(kRng) + stream] = std::to_string(position);
  for (const auto& [key, value] : state.fingerprint) metadata[std::string(kSame) + key] = value;
  return metadata;
}

TrainState from_metadata(const std::map<std::string, std::string>& metadata, const std::string& source) {
  const auto format = metadata.find("format");
  check(format != metadata.end() && format->second == kFormat, "{}: expected a training state of this version of Wick",
        source);
  TrainState state{.step = number<int64_t>(metadata, "step", source),
                   .epoch = number<int64_t>(metadata, "epoch", source),
                   .batch = number<int64_t>(metadata, "batch", source)};
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(kRng)) state.rng[key.substr(kRng.size())] = number<uint64_t>(metadata, key, source);
    if (key.starts_with(kSame)) state.fingerprint[key.substr(kSame.size())] = value;
  }
  return state;
}

}  // namespace

void save_state(const std::filesystem::path& file, const TrainState& state, const AdamW& optimizer) {
  std::map<std::string, Tensor> tensors;
  const std::vector<Parameter>& parameters = optimizer.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    tensors["param." + name] = parameters[i].value;
    tensors["m." + name] = optimizer.first_moments()[i];
    tensors["v." + name] = optimizer.second_moments()[i];
    if (!optimizer.averages().empty()) tensors["ema." + name] = optimizer.averages()[i];
  }
  std::vector<float> scalars = optimizer.scalars().to_vector();
  for (const AdamWScalar of_one_step : {kSumOfSquares, kGradNorm, kHalted}) scalars[of_one_step] = 0;
  tensors[kScalars] = Tensor::of(scalars, {kAdamWScalars});
  save_safetensors(file, tensors, to_metadata(state));
}

SavedState::SavedState(SafetensorsFile file, TrainState state) : file_(std::move(file)), state_(std::move(state)) {}

SavedState SavedState::open(const std::filesystem::path& file) {
  SafetensorsFile tensors = SafetensorsFile::open(file);
  TrainState state = from_metadata(tensors.metadata(), file.string());
  return {std::move(tensors), std::move(state)};
}

void SavedState::check_same_run(const std::map<std::string, std::string>& fingerprint) const {
  const auto of = [](const std::map<std::string, std::string>& all, const std::string& key) {
    const auto found = all.find(key);
    return found == all.end() ? std::string("nothing") : found->second;
  };
  for (const auto& all : {fingerprint, state_.fingerprint})
    for (const auto& [key, value] : all) {
      const std::string saved = of(state_.fingerprint, key), asked = of(fingerprint, key);
      check(saved == asked,
            "--resume: {} was made with {} {}, this run has {}; start anew without --resume, or change it back",
            file_.path().string(), key, saved, asked);
    }
}

void SavedState::read_into(const Tensor& target, const std::string& name) const {
  const Tensor saved = file_.load(name);
  check(saved.shape() == target.shape() && saved.dtype() == DType::f32, "{}: tensor {}: expected f32 {}, found {} {}",
        file_.path().string(), name, target.shape(), name_of(saved.dtype()), saved.shape());
  target.backend().copy(target, saved.to(target.memory()));
}

void SavedState::restore(AdamW& optimizer) const {
  const std::vector<Parameter>& parameters = optimizer.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    read_into(parameters[i].value, "param." + name);
    read_into(optimizer.first_moments()[i], "m." + name);
    read_into(optimizer.second_moments()[i], "v." + name);
    if (!optimizer.averages().empty()) read_into(optimizer.averages()[i], "ema." + name);
  }
  read_into(optimizer.scalars(), kScalars);
  optimizer.refresh_copies();
}

}  // namespace wick
