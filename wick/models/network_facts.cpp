#include "wick/models/network_facts.h"

#include <fmt/ranges.h>

#include "wick/core/error.h"

namespace wick {

NetworkFacts::NetworkFacts(const Checkpoint& component, const std::function<TensorSource(TensorSource)>& names)
    : has_config_(component.has_config() || !component.has_weights()),
      config_(has_config_ ? component.config() : Config::parse("{}", component.name())) {
  if (component.has_weights()) source_ = names ? names(component.source()) : component.source();
}

std::optional<Shape> NetworkFacts::shape(const std::string& tensor) const {
  if (!source_) return {};
  const std::optional<StoredTensor> found = source_->find(tensor, {});
  return found ? std::optional(found->shape) : std::nullopt;
}

int64_t NetworkFacts::settle(const std::string& key, const std::string& tensor, std::optional<int64_t> stored,
                             std::optional<int64_t> absent, IntegerRange range) const {
  if (!stored) {
    check(has_config_, "{}: has no tensor \"{}\", which tells the model's {}", config_.source(), tensor, key);
    return absent ? config_.integer_or(key, *absent, range) : config_.integer(key, range);
  }
  const std::string stored_name = source_->in_words(tensor);
  check(*stored >= range.min && *stored <= range.max, "{}: {} has the wrong shape: {} would be {}; expected {} to {}",
        source_->name, stored_name, key, *stored, range.min, range.max);
  const int64_t told = config_.integer_or(key, *stored, range);
  check(told == *stored, "{}: {} is {}, but by the tensor {} of {} it is {}", config_.source(), key, told, stored_name,
        source_->name, *stored);
  return *stored;
}

int64_t NetworkFacts::extent(const std::string& key, const std::string& tensor, int axis,
                             std::optional<int64_t> absent) const {
  const std::optional<Shape> found = shape(tensor);
  if (!found) return settle(key, tensor, {}, absent);
  check(axis < found->rank(), "{}: \"{}\" should have {} axes or more, found shape {}", source_->name, tensor, axis + 1,
        *found);
  return settle(key, tensor, (*found)[axis], absent);
}

std::vector<int64_t> NetworkFacts::extents(const std::string& key, const std::string& tensors, int axis) const {
  std::vector<int64_t> stored;
  const auto name = [&] { return fmt::format(fmt::runtime(tensors), stored.size()); };
  while (const std::optional<Shape> found = shape(name())) {
    check(axis < found->rank(), "{}: \"{}\" should have {} axes or more, found shape {}", source_->name, name(),
          axis + 1, *found);
    const int64_t extent = (*found)[axis];
    check(extent >= kExtent.min && extent <= kExtent.max, "{}: {} has the wrong shape {}: {} would hold {}",
          source_->name, source_->in_words(name()), *found, key, extent);
    stored.push_back(extent);
  }
  check(has_config_ || !stored.empty(), "{}: has no tensor \"{}\", which tells the model's {}", config_.source(),
        name(), key);
  const std::vector<int64_t> told = config_.has(key) || stored.empty() ? config_.integers(key, kExtent) : stored;
  check(!told.empty() && told.size() <= kMostLevels, "{}: {} should have 1 to {} entries, found {}", config_.source(),
        key, kMostLevels, told.size());
  if (stored.empty()) return told;
  check(told == stored, "{}: {} is [{}], but by the tensors \"{}\" of {} it is [{}]", config_.source(), key,
        fmt::join(told, ", "), tensors, source_->name, fmt::join(stored, ", "));
  return stored;
}

int64_t NetworkFacts::count(const std::string& key, const std::string& tensor, std::optional<int64_t> absent,
                            IntegerRange range) const {
  constexpr int64_t kGap = 100;
  const auto name = [&](int64_t i) { return fmt::format(fmt::runtime(tensor), i); };
  int64_t n = 0;
  while (has(name(n))) ++n;
  for (int64_t later = n + 1; source_ && later < n + kGap; ++later)
    check(!has(name(later)), "{}: has no tensor {}, but has {}", source_->name, source_->in_words(name(n)),
          source_->in_words(name(later)));
  if (n > 0) return settle(key, name(n - 1), n, absent, range);
  return range.min == 0 && !has_config_ ? 0 : settle(key, tensor, {}, absent, range);
}

bool NetworkFacts::presence(const std::string& key, const std::string& tensor, bool absent) const {
  const bool told = config_.boolean_or(key, absent);
  if (!source_) return told;
  const bool stored = has(tensor);
  check(!config_.has(key) || told == stored, "{}: {} is {}, but {} has {}tensor {}", config_.source(), key, told,
        source_->name, stored ? "a " : "no ", source_->in_words(tensor));
  return stored;
}

}  // namespace wick
