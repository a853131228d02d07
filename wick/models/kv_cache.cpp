#include "wick/models/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "wick/backend/backend.h"
#include "wick/io/count.h"

namespace wick {
namespace {

// The contents of a TokenPlan on the host.
struct Places {
  std::vector<int32_t> positions, rows, bounds, windows;

  Places(int64_t batch, int64_t tokens, const std::vector<TokenRun>& runs, const LlamaConfig& config, bool cached) {
    const size_t count = size_t(batch * tokens);
    positions.assign(count, 0), rows.assign(count, -1), bounds.assign(2 * count, 0);
    std::vector<int64_t> filled(size_t(batch), 0), reached(size_t(batch), 0);  // tokens and keys of each row
    // Padding sees an empty range, at the last key that the tokens before it see.
    const auto pad = [&](int64_t row, int64_t end) {
      for (int64_t& t = filled[size_t(row)]; t < end; ++t)
        for (size_t bound : {0, 1}) bounds[2 * size_t(row * tokens + t) + bound] = int32_t(reached[size_t(row)]);
    };
    for (const TokenRun& run : runs) {
      check(0 <= run.row && run.row < batch && run.begin <= run.end && run.end <= tokens && run.past >= 0 &&
                run.begin >= filled[size_t(run.row)] && (cached || run.past == 0),
            "tokens [{}, {}) of row {} of [{}, {}] with {} before them do not make a batch", run.begin, run.end,
            run.row, batch, tokens, run.past);
      const int64_t first = cached ? 0 : run.begin;  // key of the sequence's first token
      pad(run.row, run.begin);
      for (int64_t t = run.begin; t < run.end; ++t) {
        const size_t at = size_t(run.row * tokens + t);
        positions[at] = int32_t(run.past + t - run.begin);
        rows[at] = int32_t(first) + positions[at];
        bounds[2 * at] = int32_t(first);
        bounds[2 * at + 1] = rows[at] + 1;
      }
      filled[size_t(run.row)] = run.end;
      reached[size_t(run.row)] = first + run.past + run.end - run.begin;
    }
    for (int64_t row = 0; row < batch; ++row) pad(row, tokens);

    if (!cached) rows.clear();
    if (config.window == 0) return;
    windows = bounds;
    for (size_t i = 0; i < windows.size(); i += 2)
      windows[i] = int32_t(std::max<int64_t>(windows[i], windows[i + 1] - config.window));
  }
};

// cos and sin f32 [B, T, head_dim / 2] of positions i32 [B, T], on their device; as transformers computes them.
std::pair<Tensor, Tensor> angles_of(const Tensor& positions, const Tensor& frequencies) {
  const auto table = [&] {
    return Tensor::empty({positions.dim(0), positions.dim(1), frequencies.numel()}, DType::f32, positions.memory());
  };
  const Tensor cos = table(), sin = table();
  positions.backend().rope_angles(cos, sin, positions, frequencies);
  return {cos, sin};
}

// A plan's arrays packed into one 64-byte aligned buffer, so that a single copy moves them. Up to 64 tokens it contains
// cos and sin, ready for a step's first kernels; beyond that positions and frequencies, from which the device computes
// them.
struct PackedPlaces {
  std::vector<char> bytes;
  bool few;
  int64_t cos = 0, sin = 0, positions = 0, frequencies = 0, rows, bounds, windows;

  PackedPlaces(const Places& p, const LlamaConfig& config) : few(p.positions.size() <= kFewTokens) {
    const std::vector<float> per_position = config.rope_frequencies();
    if (few) {
      const Tensor all = Tensor::empty({1, int64_t(p.positions.size())}, DType::i32);
      std::copy(p.positions.begin(), p.positions.end(), all.data<int32_t>());
      const auto [c, s] = angles_of(all, Tensor::of(per_position, {int64_t(per_position.size())}));
      cos = append(c.to_vector());
      sin = append(s.to_vector());
    } else {
      positions = append(p.positions);
      frequencies = append(per_position);
    }
    rows = append(p.rows);
    bounds = append(p.bounds);
    windows = append(p.windows);
  }

 private:
  static constexpr size_t kFewTokens = 64;

  template <class T>
  int64_t append(const std::vector<T>& values) {
    const size_t begin = (bytes.size() + 63) / 64 * 64, size = values.size() * sizeof(T);
    bytes.resize(begin + size);
    if (size > 0) std::memcpy(bytes.data() + begin, values.data(), size);
    return int64_t(begin);
  }
};

}  // namespace

TokenPlan::TokenPlan(int64_t batch, int64_t tokens, const std::vector<TokenRun>& runs, const LlamaConfig& config,
                     bool cached, Memory& memory) {
  const PackedPlaces places(Places(batch, tokens, runs, config, cached), config);
  all_ = Tensor::empty({int64_t(places.bytes.size())}, DType::u8, memory);
  memory.write(all_.view().data, places.bytes.data(), places.bytes.size());
  const int64_t turned = config.head_dim / 2;
  const Shape all{batch, tokens}, angles{batch, tokens, turned}, pairs{batch, tokens, 2};
  const auto part = [&](int64_t at, DType dtype, const Shape& shape) { return all_.part(at, dtype, shape).constant(); };
  if (places.few)
    cos = part(places.cos, DType::f32, angles), sin = part(places.sin, DType::f32, angles);
  else
    std::tie(cos, sin) =
        angles_of(part(places.positions, DType::i32, all), part(places.frequencies, DType::f32, {turned}));
  ranges = part(places.bounds, DType::i32, pairs);
  if (config.window > 0) windowed_ranges = part(places.windows, DType::i32, pairs);
  if (cached) cache_rows = part(places.rows, DType::i32, all);
}

void TokenPlan::move_to(const std::vector<TokenRun>& runs, const LlamaConfig& config) {
  const PackedPlaces places(Places(ranges.dim(0), ranges.dim(1), runs, config, bool(cache_rows)), config);
  check(places.few, "TokenPlan: a plan of {} tokens cannot move", ranges.numel() / 2);
  all_.memory().write(all_.view().data, places.bytes.data(), places.bytes.size());
}

TokenPlan TokenPlan::dense(int64_t batch, int64_t tokens, const LlamaConfig& config, Memory& memory) {
  std::vector<TokenRun> runs;
  for (int64_t row = 0; row < batch; ++row) runs.push_back({row, 0, tokens});
  return TokenPlan(batch, tokens, runs, config, /*cached=*/false, memory);
}

TokenPlan TokenPlan::masked(const Tensor& mask, const LlamaConfig& config, Memory& memory) {
  check(mask.rank() == 2 && mask.dtype() == DType::i64 && mask.contiguous(),
        "attention_mask: expected i64 [B, T], found {} {}", name_of(mask.dtype()), mask.shape());
  std::vector<TokenRun> runs;
  for (int64_t row = 0; row < mask.dim(0); ++row) {
    const int64_t* begin = mask.data<int64_t>() + row * mask.dim(1);
    const int64_t* end = begin + mask.dim(1);
    const int64_t* first = std::find(begin, end, 1);
    const int64_t* last = std::find_if(first, end, [](int64_t m) { return m != 1; });
    check(std::all_of(begin, first, [](int64_t m) { return m == 0; }) &&
              std::all_of(last, end, [](int64_t m) { return m == 0; }),
          "attention_mask: row {} should be ones in one piece, with zeros before or behind it", row);
    runs.push_back({row, first - begin, last - begin});
  }
  return TokenPlan(mask.dim(0), mask.dim(1), runs, config, /*cached=*/false, memory);
}

KvCache::KvCache(const LlamaConfig& config, int64_t batch, int64_t capacity, const Residence& place)
    : config_(config), capacity_(capacity), lengths_(size_t(batch), 0) {
  check(capacity > 0 && capacity <= std::numeric_limits<int32_t>::max(), "KvCache: a capacity of {}",
        count_of(capacity, "token"));
  const Shape shape{batch, capacity, config.kv_heads, config.head_dim};
  const MemoryScope scope(Purpose::data);
  for (int layer = 0; layer < config.layers; ++layer)
    layers_.emplace_back(Tensor::empty(shape, place.activations, *place.memory),
                         Tensor::empty(shape, place.activations, *place.memory));
}

void KvCache::truncate(int64_t row, int64_t length) {
  check(0 <= length && length <= lengths_[size_t(row)], "KvCache: sequence {} has {}, not {}", row,
        count_of(lengths_[size_t(row)], "token"), length);
  lengths_[size_t(row)] = length;
}

std::vector<TokenRun> KvCache::runs_of(const std::vector<int64_t>& counts) const {
  check(counts.size() == lengths_.size(), "KvCache: of {} {} are told", count_of(lengths_.size(), "sequence"),
        counts.size());
  std::vector<TokenRun> runs;
  for (size_t row = 0; row < counts.size(); ++row) {
    check(lengths_[row] + counts[row] <= capacity_, "the context is full: {} and {} more do not fit in {}",
          count_of(lengths_[row], "token"), counts[row], capacity_);
    runs.push_back({int64_t(row), 0, counts[row], lengths_[row]});
  }
  return runs;
}

void KvCache::count_in(const std::vector<int64_t>& counts) {
  for (size_t row = 0; row < counts.size(); ++row) lengths_[row] += counts[row];
}

TokenPlan KvCache::extend(const std::vector<int64_t>& counts) {
  const std::vector<TokenRun> runs = runs_of(counts);
  TokenPlan plan(int64_t(counts.size()), *std::max_element(counts.begin(), counts.end()), runs, config_,
                 /*cached=*/true, layers_.front().first.memory());
  count_in(counts);
  return plan;
}

void KvCache::extend(const std::vector<int64_t>& counts, TokenPlan& plan) {
  plan.move_to(runs_of(counts), config_);
  count_in(counts);
}

std::tuple<Tensor, Tensor, Tensor> KvCache::append(int layer, const Tensor& q, const Tensor& k, const Tensor& v,
                                                   const TokenPlan& plan) {
  const auto& [keys, values] = layers_[size_t(layer)];
  check(plan.cache_rows && k.dim(0) == int64_t(lengths_.size()), "KvCache: keys {} of a plan without a cache",
        k.shape());
  const Tensor turned = Tensor::empty(q.shape(), q.dtype(), q.memory());
  keys.backend().rope_into_cache({.turned = turned,
                                  .keys = keys,
                                  .values = values,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .cos = plan.cos,
                                  .sin = plan.sin,
                                  .rows = plan.cache_rows});
  return {turned, keys, values};
}

size_t estimate_kv_cache_memory(const LlamaConfig& config, int64_t batch, int64_t capacity, DType dtype) {
  return 2 * size_t(config.layers) * size_t(batch * capacity * config.kv_width()) * size_of(dtype);
}

}  // namespace wick
