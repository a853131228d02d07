#include "wick/train/shards.h"

#include <algorithm>

#include "wick/ops/shape.h"

namespace wick {

Shard shard_of(const TrainConfig& config, int rank) {
  const bool is_sharded = config.train != TrainMode::lora && config.optimizer != OptimizerKind::prodigy;
  return is_sharded ? Shard{rank, int(config.ranks)} : Shard{};
}

// A parameter is where its middle lies in equal parts of all elements.
std::vector<int> owners_of(const std::vector<Parameter>& parameters, int count) {
  int64_t total = 0, begin = 0;
  for (const Parameter& p : parameters) total += p.value.numel();
  std::vector<int> owners;
  for (const Parameter& p : parameters) {
    const double middle = double(begin) + double(p.value.numel()) / 2;
    owners.push_back(std::clamp(int(middle / double(total) * count), 0, count - 1));
    begin += p.value.numel();
  }
  return owners;
}

int largest_owner(const std::vector<Parameter>& parameters, int count) {
  const std::vector<int> owners = owners_of(parameters, count);
  std::vector<int64_t> elements(static_cast<size_t>(count));
  for (size_t i = 0; i < parameters.size(); ++i) elements[size_t(owners[i])] += parameters[i].value.numel();
  return int(std::ranges::max_element(elements) - elements.begin());
}

void share_values(const std::vector<Parameter>& parameters, const std::vector<int>& owners, const Tensor& room,
                  RankSums& ranks) {
  std::vector<Copied> own, others;
  std::vector<int64_t> counts(static_cast<size_t>(ranks.count()));
  int64_t at = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const Tensor place = room.window(p.value.shape(), contiguous_strides(p.value.shape()), at);
    at += p.value.numel();
    counts[size_t(owners[i])] += p.value.numel();
    if (owners[i] == ranks.rank()) {
      own.push_back({place, p.value});
      continue;
    }
    others.push_back({p.value, place});
    if (p.copy) others.push_back({p.copy, place});
  }
  Backend& backend = room.backend();
  backend.copy_many(own, /*add=*/false);
  ranks.all_gather(room.window({at}, {1}), counts);
  ranks.join();
  backend.copy_many(others, /*add=*/false);
}

}  // namespace wick
