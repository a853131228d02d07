// The sizes of one network: from its config, if it has one, and from the shapes of its tensors, if they are there. A
// size that both tell must be the same in both, else an Error names the config's key and the tensor with both numbers.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "wick/nn/checkpoint.h"

namespace wick {

inline constexpr size_t kMostLevels = 15;  // of a network that halves its size from each to the next

class NetworkFacts {
 public:
  // `names` brings the stored tensors to the names that are asked for. Throws Error where there are neither config nor
  // tensors.
  explicit NetworkFacts(const Checkpoint& component, const std::function<TensorSource(TensorSource)>& names = nullptr);

  const Config& config() const { return config_; }  // without keys where the network has none
  bool has_config() const { return has_config_; }
  bool has_tensors() const { return source_.has_value(); }
  std::string source() const { return source_ ? source_->name : config_.source(); }  // the tensors', for errors
  bool has(const std::string& tensor) const { return shape(tensor).has_value(); }
  std::optional<Shape> shape(const std::string& tensor) const;

  // The tensor's extent along `axis`, within kExtent. `absent`: the value of a config without the key, where there are
  // no tensors.
  int64_t extent(const std::string& key, const std::string& tensor, int axis, std::optional<int64_t> absent = {}) const;
  // The extents of several tensors, in whose name "{}" stands for 0, 1, …, against a list; at most kMostLevels.
  std::vector<int64_t> extents(const std::string& key, const std::string& tensors, int axis) const;
  // The number of tensors of that name, in which "{}" stands for 0, 1, …. Where the range allows 0, tensors without
  // such a one have none, unless the config tells otherwise.
  int64_t count(const std::string& key, const std::string& tensor, std::optional<int64_t> absent = {},
                IntegerRange range = kPartCount) const;
  // A size that follows from the shape of `tensor`; none where that is not there.
  int64_t settle(const std::string& key, const std::string& tensor, std::optional<int64_t> stored,
                 std::optional<int64_t> absent = {}, IntegerRange range = kExtent) const;
  // Is the tensor there?
  bool presence(const std::string& key, const std::string& tensor, bool absent) const;

 private:
  bool has_config_;
  Config config_;
  std::optional<TensorSource> source_;
};

}  // namespace wick
