#include "wick/train/text_batch.h"

#include <algorithm>
#include <numeric>

#include "wick/io/count.h"

namespace wick {

PackedBatch pack(const std::vector<TextDocument>& documents, const std::vector<PackedRow>& rows, int64_t row_length,
                 float weight, const LlamaConfig& config, Memory& memory) {
  constexpr int64_t kIgnored = -100;
  const auto length_of = [&](const PackedRow& row) {
    return std::accumulate(row.begin(), row.end(), int64_t{0},
                           [&](int64_t sum, size_t i) { return sum + documents[i].size(); });
  };
  int64_t width = row_length;
  for (const PackedRow& row : rows) width = std::max(width, length_of(row));
  const int64_t count = int64_t(rows.size()) * width;
  std::vector<int64_t> ids(size_t(count), 0), targets(size_t(count), kIgnored);
  std::vector<float> weights(size_t(count), 0);
  std::vector<TokenRun> runs;
  for (size_t row = 0; row < rows.size(); ++row) {
    int64_t begin = 0;
    for (const size_t i : rows[row]) {
      const TextDocument& document = documents[i];
      const size_t at = row * size_t(width) + size_t(begin);
      for (size_t t = 0; t < document.ids.size(); ++t) {
        ids[at + t] = document.ids[t];
        if (t > 0 && document.counts[t]) targets[at + t - 1] = document.ids[t], weights[at + t - 1] = weight;
      }
      runs.push_back({int64_t(row), begin, begin + document.size()});
      begin += document.size();
    }
  }
  const Shape shape{int64_t(rows.size()), width};
  return {Tensor::of(ids, shape, memory),
          TokenPlan(shape[0], width, runs, config, /*cached=*/false, memory),
          {Tensor::of(targets, {count}, memory), Tensor::of(weights, {count}, memory)}};
}

int64_t counted(const std::vector<TextDocument>& documents, const std::vector<PackedRow>& rows) {
  int64_t count = 0;
  for (const PackedRow& row : rows)
    for (const size_t i : row) count += documents[i].counted();
  return count;
}

double total_loss(const Llama& model, const std::vector<TextDocument>& documents, int64_t row_length,
                  int64_t batch_size) {
  const std::vector<double> losses = losses_of_batches(model, documents, row_length, batch_size);
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

std::vector<double> losses_of_batches(const Llama& model, const std::vector<TextDocument>& documents,
                                      int64_t row_length, int64_t batch_size, size_t first, size_t every) {
  std::vector<int64_t> lengths;
  for (const TextDocument& d : documents) lengths.push_back(d.size());
  std::vector<size_t> order(documents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const std::vector<PackedRow> rows = first_fit(order, lengths, row_length);
  const size_t size = size_t(batch_size), count = (rows.size() + size - 1) / size;
  std::vector<double> losses(count, 0.0);
  for (size_t i = first; i < count; i += every) {
    const size_t begin = i * size, end = std::min(rows.size(), begin + size);
    const std::vector<PackedRow> some(rows.begin() + std::ptrdiff_t(begin), rows.begin() + std::ptrdiff_t(end));
    const PackedBatch batch = pack(documents, some, row_length, 1, model.config(), *model.place().memory);
    losses[i] = double(model.loss(model(batch.ids, batch.plan), batch.targets).item());
  }
  return losses;
}

std::vector<TextDocument> windows(const TextDocument& document, int64_t length, int64_t stride) {
  check(0 < stride && stride < length, "windows of {}, {} apart", count_of(length, "token"), stride);
  std::vector<TextDocument> pieces;
  for (int64_t begin = 0, counted = 0; counted < document.size(); begin += stride) {
    const int64_t end = std::min(document.size(), begin + length);
    TextDocument piece{{document.ids.begin() + begin, document.ids.begin() + end}, {}};
    for (int64_t t = begin; t < end; ++t) piece.counts.push_back(t >= counted && document.counts[size_t(t)]);
    pieces.push_back(std::move(piece));
    counted = end;
  }
  return pieces;
}

}  // namespace wick
