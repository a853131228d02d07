#include "wick/train/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

#include "wick/io/descriptor.h"
#include "wick/train/train_rng.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

constexpr const char *kFormat = "wick training state 4", *kFormatOlder = "wick training state 3",
                     *kFormatBefore = "wick training state 2";
constexpr const char *kHash = "sha256", *kFinished = "finished", *kSample = "sample", *kBatches = "batches a step",
                     *kRanks = "ranks";
constexpr std::string_view kNewStream = "crop";                                    // which states did not always have
constexpr std::string_view kRng = "rng.", kSame = "same.", kSetting = "setting.";  // prefixes of metadata keys
constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kMostSteps = std::numeric_limits<int32_t>::max();

std::string value_of(const Metadata& all, const std::string& key, const char* missing = "") {
  const auto found = all.find(key);
  return found == all.end() ? missing : found->second;
}

int64_t number(const Metadata& metadata, const std::string& key, int64_t min, int64_t max, const std::string& source) {
  const auto found = metadata.find(key);
  check(found != metadata.end(), "{}: the metadata lacks '{}'; not a training state of Wick's", source, key);
  int64_t value{};
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value >= min && value <= max,
        "{}: metadata {}: expected a number from {} to {}, found '{}'", source, key, min, max, text);
  return value;
}

void add_prefixed(Metadata& all, std::string_view prefix, const Metadata& some) {
  for (const auto& [key, value] : some) all[std::string(prefix) + key] = value;
}

Metadata prefixed(const Metadata& all, std::string_view prefix) {
  Metadata some;
  for (const auto& [key, value] : all)
    if (key.starts_with(prefix)) some[key.substr(prefix.size())] = value;
  return some;
}

Metadata to_metadata(const TrainState& state) {
  Metadata metadata{{"format", state.sample ? kFormat : kFormatOlder},
                    {"step", std::to_string(state.step)},
                    {"epoch", std::to_string(state.epoch)},
                    {"batch", std::to_string(state.batch)},
                    {kFinished, state.finished ? "true" : "false"}};
  if (state.sample) {
    metadata[kSample] = std::to_string(*state.sample);
    metadata[kBatches] = std::to_string(state.batches);
    metadata[kRanks] = std::to_string(state.ranks);
  }
  for (const auto& [stream, position] : state.rng) metadata[std::string(kRng) + stream] = std::to_string(position);
  add_prefixed(metadata, kSame, state.fingerprint);
  add_prefixed(metadata, kSetting, state.settings);
  return metadata;
}

std::map<std::string, uint64_t> rng_positions(const Metadata& metadata, const std::string& source) {
  std::map<std::string, uint64_t> positions;
  for (const auto& [stream, zero] : TrainRng(0).positions()) {
    const std::string key = std::string(kRng) + stream;
    const bool is_older = stream == kNewStream && !metadata.contains(key);  // nothing was drawn from it
    positions[stream] = is_older ? 0 : uint64_t(number(metadata, key, 0, kMost, source));
  }
  for (const auto& [stream, position] : prefixed(metadata, kRng))
    check(positions.contains(stream), "{}: metadata {}{}: there is no such random stream", source, kRng, stream);
  return positions;
}

// The version before counted these settings as the run's own, though a run may be moved and given another learning
// rate. It had no mark of a finished run: its last step was saved after the result.
void read_before(TrainState& state) {
  for (const char* key : {"--model", "--lr"})
    if (auto setting = state.fingerprint.extract(key)) state.settings.insert(std::move(setting));
  state.finished = true;
}

TrainState from_metadata(const Metadata& metadata, const std::string& source) {
  const std::string format = value_of(metadata, "format");
  const bool before = format == kFormatBefore;
  const bool is_older = before || format == kFormatOlder;
  check(is_older || format == kFormat, "{}: expected a training state of this version of Wick or of the two before",
        source);
  TrainState state{.step = number(metadata, "step", 1, kMostSteps, source),
                   .epoch = number(metadata, "epoch", 0, kMost, source),
                   .batch = number(metadata, "batch", 0, kMost, source),
                   .fingerprint = prefixed(metadata, kSame),
                   .settings = prefixed(metadata, kSetting)};
  if (is_older) {
    state.rng = rng_positions(metadata, source);
  } else {
    state.sample = uint64_t(number(metadata, kSample, 0, kMost, source));
    state.batches = number(metadata, kBatches, 1, kMostSteps, source);
    state.ranks = number(metadata, kRanks, 1, kMostSteps, source);
  }
  if (before)
    read_before(state);
  else
    state.finished = value_of(metadata, kFinished) == "true";
  return state;
}

// The hash of all that a state holds: its metadata but the hash itself, and each tensor's name, dtype, shape and
// numbers. `tensor` gives them by name, one at a time, since all of a large model may not fit on the host.
template <class Names, class Tensors>
std::string content_hash(const Metadata& metadata, const Names& names, const Tensors& tensor) {
  Sha256 hash;
  const auto add = [&](const std::string& text) {
    const std::string part = fmt::format("{}:{}", text.size(), text);
    hash.update(part.data(), part.size());
  };
  for (const auto& [key, value] : metadata)
    if (key != kHash) add(key), add(value);
  for (const auto& [name, any] : names) {
    const Tensor values = tensor(name);
    add(name), add(fmt::format("{} {}", name_of(values.dtype()), values.shape()));
    add(sha256_of_tensors({{name, values}}));
  }
  return hash.hex();
}

std::optional<int64_t> step_in_name(const std::string& file) {
  constexpr std::string_view kBefore = "state-", kAfter = ".safetensors";
  if (file == "state.safetensors") return 0;  // the oldest: the version before wrote it
  if (!file.starts_with(kBefore) || !file.ends_with(kAfter)) return {};
  int64_t step{};
  const char *begin = file.data() + kBefore.size(), *end = file.data() + file.size() - kAfter.size();
  const auto [last, error] = std::from_chars(begin, end, step);
  return error == std::errc{} && last == end && begin < end && step > 0 ? std::optional(step) : std::nullopt;
}

size_t bytes_of(const Tensor& tensor) { return size_t(wick::bytes_of(tensor.dtype(), tensor.shape())); }

}  // namespace

std::map<std::string, Tensor> fetch_states(const Optimizer& optimizer, Ranks& ranks) {
  std::map<std::string, Tensor> elsewhere;
  for (const Optimizer::State& state : optimizer.states()) {
    if (state.owner == 0 || (!ranks.is_first() && state.owner != ranks.rank())) continue;
    const Tensor on_host =
        ranks.is_first() ? Tensor::empty(state.shape, state.dtype) : state.value.detached().to(host_memory());
    ranks.fetch(on_host.view().data, bytes_of(on_host), state.owner);
    if (ranks.is_first()) elsewhere[state.name] = on_host;
  }
  return elsewhere;
}

void save_state(const fs::path& file, const TrainState& state, const Optimizer& optimizer,
                const std::map<std::string, Tensor>& elsewhere) {
  std::map<std::string, Tensor> tensors = elsewhere;
  for (const Optimizer::State& kept : optimizer.states())
    if (kept.value) tensors[kept.name] = kept.value;
  std::vector<float> scalars = optimizer.scalars().to_vector();
  for (const StepScalar of_one_step : {kSumOfSquares, kGradNorm, kHalted}) scalars[of_one_step] = 0;
  tensors[Optimizer::kScalarsName] = Tensor::of(scalars, optimizer.scalars().shape());
  Metadata metadata = to_metadata(state);
  metadata[kHash] = content_hash(metadata, tensors, [&](const std::string& name) { return tensors.at(name); });
  save_safetensors(file, tensors, metadata);
}

SavedState::SavedState(SafetensorsFile file, TrainState state) : file_(std::move(file)), state_(std::move(state)) {}

// The hash comes first: where it fits, a fault was there when the state was written. A file of the version before that
// has a hash after all is one of ours with a bit flipped.
SavedState SavedState::open(const fs::path& file) {
  SafetensorsFile tensors = SafetensorsFile::open(file);
  const Metadata& metadata = tensors.metadata();
  const auto hash = metadata.find(kHash);
  const std::string format = value_of(metadata, "format", kFormatBefore);
  check(hash != metadata.end() || format == kFormatBefore,
        "{}: the metadata lacks '{}'; not a training state of Wick's", file.string(), kHash);
  if (hash != metadata.end())
    check(content_hash(metadata, tensors.tensors(), [&](const std::string& name) { return tensors.load(name); }) ==
              hash->second,
          "{}: the file is damaged: its content does not have the hash that it was saved with", file.string());
  TrainState state = from_metadata(metadata, file.string());
  return {std::move(tensors), std::move(state)};
}

std::optional<TrainState> SavedState::glimpse(const fs::path& folder) {
  for (const fs::path& file : state_files(folder)) try {
      return from_metadata(SafetensorsFile::open(file).metadata(), file.string());
    } catch (const TooManyFiles&) {
      throw;
    } catch (const Error&) {  // open_newest() tells
    }
  return {};
}

bool SavedState::has_hash() const { return file_.metadata().contains(kHash); }

void SavedState::check_same_run(const Metadata& fingerprint, const Metadata& defaults) const {
  for (const auto& all : {fingerprint, state_.fingerprint})
    for (const auto& [key, value] : all) {
      const std::string saved = value_of(state_.fingerprint, key, value_of(defaults, key, "nothing").c_str()),
                        asked = value_of(fingerprint, key, "nothing");
      check(saved == asked,
            "--resume: {} was made with {} {}, this run has {}; start anew without --resume, or change it back",
            file_.path().string(), key, saved, asked);
    }
}

Tensor SavedState::load(const Optimizer::State& state) const {
  Tensor saved = file_.load(state.name);
  check(saved.shape() == state.shape && saved.dtype() == state.dtype, "{}: tensor {}: expected {} {}, found {} {}",
        file_.path().string(), state.name, name_of(state.dtype), state.shape, name_of(saved.dtype()), saved.shape());
  return saved;
}

void restore(Optimizer& optimizer, const SavedState* saved, Ranks& ranks) {
  for (const Optimizer::State& state : optimizer.states()) {
    const Tensor value = ranks.is_first() ? saved->load(state) : Tensor::empty(state.shape, state.dtype);
    ranks.broadcast(value.view().data, bytes_of(value));
    if (state.value) state.value.backend().copy(state.value, value.to(state.value.memory()));
  }
  optimizer.refresh_copies();
}

std::vector<fs::path> state_files(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::too_many_files_open || error == std::errc::too_many_files_open_in_system)
    fail_to_open(folder.string(), error.value());
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error))
    if (const auto step = step_in_name(entry->path().filename().string())) found.emplace_back(*step, entry->path());
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> files;
  for (auto& [step, file] : found) files.push_back(std::move(file));
  return files;
}

std::optional<SavedState> StateFolder::open_newest(const std::function<void(const std::string&)>& say) {
  std::vector<std::string> damaged;
  for (const fs::path& file : state_files(folder_)) {
    try {
      SavedState saved = SavedState::open(file);
      for (const std::string& what : damaged) say(what + "; it is passed over");
      kept_ = {{saved.state().step, file}};
      return saved;
    } catch (const OutOfMemory&) {
      throw;
    } catch (const TooManyFiles&) {
      throw;
    } catch (const Error& e) {
      damaged.emplace_back(e.what());
    }
  }
  check(damaged.empty(), "{}; no other state is whole: begin anew in another --output",
        damaged.empty() ? "" : damaged.front());
  return {};
}

void StateFolder::save(const TrainState& state, const Optimizer& optimizer,
                       const std::map<std::string, Tensor>& elsewhere) {
  const fs::path file = folder_ / fmt::format("state-{:06}.safetensors", state.step);
  save_state(file, state, optimizer, elsewhere);
  kept_[state.step] = file;
  while (kept_.size() > 2) kept_.erase(kept_.begin());
  for (const fs::path& other : state_files(folder_)) {
    std::error_code ignored;  // one that stays is harmless
    if (std::none_of(kept_.begin(), kept_.end(), [&](const auto& kept) { return kept.second == other; }))
      fs::remove(other, ignored);
  }
}

std::optional<int64_t> StateFolder::newest_step() const {
  return kept_.empty() ? std::nullopt : std::optional(kept_.rbegin()->first);
}

}  // namespace wick
