#include "wick/models/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "wick/backend/backend.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

Tensor on_device(const std::vector<int64_t>& values, const Shape& shape, DType dtype, Memory& memory) {
  return cast(Tensor::of(values, shape), dtype).to(memory);
}

// Angles in f32, as transformers computes them.
void set_rotation(TokenPlan& plan, const std::vector<int64_t>& positions, const Shape& shape,
                  const std::vector<float>& frequencies, Memory& memory) {
  std::vector<float> cos, sin;
  cos.reserve(positions.size() * frequencies.size());
  sin.reserve(cos.capacity());
  for (const int64_t position : positions)
    for (const float frequency : frequencies) {
      cos.push_back(std::cos(float(position) * frequency));
      sin.push_back(std::sin(float(position) * frequency));
    }
  const Shape table{shape[0], shape[1], int64_t(frequencies.size())};
  plan.cos = Tensor::of(cos, table, memory);
  plan.sin = Tensor::of(sin, table, memory);
}

}  // namespace

TokenPlan::TokenPlan(int64_t batch, int64_t tokens, const std::vector<TokenRun>& runs, const LlamaConfig& config,
                     bool cached, Memory& memory) {
  const size_t count = size_t(batch * tokens);
  std::vector<int64_t> positions(count, 0), rows(count, -1), bounds(2 * count, 0);
  std::vector<int64_t> filled(size_t(batch), 0), reached(size_t(batch), 0);  // of each row: tokens, and keys
  // Padding sees nothing, from where the tokens before it saw last.
  const auto pad = [&](int64_t row, int64_t end) {
    for (int64_t& t = filled[size_t(row)]; t < end; ++t)
      for (size_t bound : {0, 1}) bounds[2 * size_t(row * tokens + t) + bound] = reached[size_t(row)];
  };
  for (const TokenRun& run : runs) {
    check(0 <= run.row && run.row < batch && run.begin <= run.end && run.end <= tokens && run.past >= 0 &&
              run.begin >= filled[size_t(run.row)] && (cached || run.past == 0),
          "tokens [{}, {}) of row {} of [{}, {}] with {} before them do not make a batch", run.begin, run.end, run.row,
          batch, tokens, run.past);
    const int64_t first = cached ? 0 : run.begin;  // key of the sequence's first token
    pad(run.row, run.begin);
    for (int64_t t = run.begin; t < run.end; ++t) {
      const size_t at = size_t(run.row * tokens + t);
      positions[at] = run.past + t - run.begin;
      rows[at] = first + positions[at];
      bounds[2 * at] = first;
      bounds[2 * at + 1] = rows[at] + 1;
    }
    filled[size_t(run.row)] = run.end;
    reached[size_t(run.row)] = first + run.past + run.end - run.begin;
  }
  for (int64_t row = 0; row < batch; ++row) pad(row, tokens);

  set_rotation(*this, positions, {batch, tokens}, config.rope_frequencies(), memory);
  ranges = on_device(bounds, {batch, tokens, 2}, DType::i32, memory);
  if (cached) cache_rows = on_device(rows, {batch, tokens}, DType::i32, memory);
  if (config.window == 0) return;
  for (size_t i = 0; i < bounds.size(); i += 2) bounds[i] = std::max(bounds[i], bounds[i + 1] - config.window);
  windowed_ranges = on_device(bounds, {batch, tokens, 2}, DType::i32, memory);
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
  check(capacity > 0 && capacity <= std::numeric_limits<int32_t>::max(), "KvCache: a capacity of {} tokens", capacity);
  const Shape shape{batch, capacity, config.kv_heads, config.head_dim};
  const MemoryScope scope(Purpose::data);
  for (int layer = 0; layer < config.layers; ++layer)
    layers_.emplace_back(Tensor::empty(shape, place.activations, *place.memory),
                         Tensor::empty(shape, place.activations, *place.memory));
}

void KvCache::truncate(int64_t row, int64_t length) {
  check(0 <= length && length <= lengths_[size_t(row)], "KvCache: sequence {} has {} tokens, not {}", row,
        lengths_[size_t(row)], length);
  lengths_[size_t(row)] = length;
}

TokenPlan KvCache::extend(const std::vector<int64_t>& counts) {
  check(counts.size() == lengths_.size(), "KvCache: of {} sequences {} are told", lengths_.size(), counts.size());
  std::vector<TokenRun> runs;
  int64_t tokens = 0;
  for (size_t row = 0; row < counts.size(); ++row) {
    check(lengths_[row] + counts[row] <= capacity_, "the context is full: {} tokens and {} more do not fit in {}",
          lengths_[row], counts[row], capacity_);
    runs.push_back({int64_t(row), 0, counts[row], lengths_[row]});
    tokens = std::max(tokens, counts[row]);
  }
  Memory& memory = layers_.front().first.memory();
  TokenPlan plan(int64_t(counts.size()), tokens, runs, config_, /*cached=*/true, memory);
  for (size_t row = 0; row < counts.size(); ++row) lengths_[row] += counts[row];
  return plan;
}

std::pair<Tensor, Tensor> KvCache::append(int layer, const Tensor& k, const Tensor& v, const TokenPlan& plan) {
  const auto& kept = layers_[size_t(layer)];
  check(plan.cache_rows && k.dim(0) == int64_t(lengths_.size()), "KvCache: keys {} of a plan without a cache",
        k.shape());
  kept.first.backend().scatter_rows(kept.first, k, plan.cache_rows);
  kept.second.backend().scatter_rows(kept.second, v, plan.cache_rows);
  return kept;
}

size_t estimate_kv_cache_memory(const LlamaConfig& config, int64_t batch, int64_t capacity, DType dtype) {
  return 2 * size_t(config.layers) * size_t(batch * capacity * config.kv_width()) * size_of(dtype);
}

}  // namespace wick
