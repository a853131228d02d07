// Adafactor (Shazeer & Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018) as transformers
// computes it without beta1, at a rate from outside: the second moment of g[m, n] is the product of its row's mean and
// its column's, over the mean of all. A vector is a matrix of one row, whose factor is 1. Sums are
// in double precision and in one order, whatever the number of threads.
#include <cmath>

#include "wick/backend/cpu/optimizer/rules.h"

namespace wick {
namespace {

struct Factors {
  double grad_scale;
  double keep;  // the share of a second moment that stays: 1 - t^decay_rate
  double eps, clip_threshold, lr, weight_decay;

  double square(float g) const {
    const double scaled = grad_scale * double(g);
    return scaled * scaled + eps;
  }
};

// A parameter and its states. Rows of all its matrices are counted together.
struct Moments {
  explicit Moments(const OptimizerSlot& s)
      : slot(s),
        cols(s.param.rank() > 0 ? s.param.dim(-1) : 1),
        rows(s.states.size() == 2 ? s.param.dim(-2) : 1),
        all_rows(s.states.size() == 2 ? s.param.numel() / std::max<int64_t>(cols, 1) : 1),
        row(s.states.size() == 2 ? s.states[0].as<float>() : nullptr),
        column(s.states.back().as<float>()) {}

  const OptimizerSlot& slot;
  int64_t cols, rows, all_rows;
  float *row, *column;
  std::vector<float> row_factor, column_factor;

  float* param(int64_t r) const { return slot.param.as<float>() + r * cols; }
  const float* grad(int64_t r) const { return slot.grad.as<const float>() + r * cols; }
  int64_t numel() const { return all_rows * cols; }

  void update_rows(const Factors& f) {
    row_factor.assign(size_t(all_rows), 1);
    if (!row) return;
    parallel_each(all_rows, numel(), [&](int64_t r) {
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c) sum += f.square(grad(r)[c]);
      row[r] = float(f.keep * double(row[r]) + (1 - f.keep) * (sum / double(cols)));
    });
    for (int64_t first = 0; first < all_rows; first += rows) {
      double mean = 0;
      for (int64_t r = first; r < first + rows; ++r) mean += double(row[r]) / double(rows);
      for (int64_t r = first; r < first + rows; ++r) row_factor[size_t(r)] = float(std::sqrt(mean / double(row[r])));
    }
  }

  void update_columns(const Factors& f) {
    constexpr int64_t kColumns = 256;  // a task
    const int64_t matrices = all_rows / rows, tasks = (cols + kColumns - 1) / kColumns;
    column_factor.resize(size_t(matrices * cols));
    parallel_each(matrices * tasks, numel(), [&](int64_t task) {
      const int64_t matrix = task / tasks, begin = task % tasks * kColumns, count = std::min(cols - begin, kColumns);
      std::array<double, kColumns> sums{};
      for (int64_t r = matrix * rows; r < (matrix + 1) * rows; ++r)
        for (int64_t c = 0; c < count; ++c) sums[size_t(c)] += f.square(grad(r)[begin + c]);
      for (int64_t c = 0; c < count; ++c) {
        const int64_t at = matrix * cols + begin + c;
        column[at] = float(f.keep * double(column[at]) + (1 - f.keep) * (sums[size_t(c)] / double(rows)));
        column_factor[size_t(at)] = float(1 / std::sqrt(double(column[at])));
      }
    });
  }

  // f(row, column, update) for each element of a row.
  template <class F>
  void for_updates(const Factors& s, int64_t r, const F& f) const {
    const float* of_columns = column_factor.data() + r / rows * cols;
    const float scale = float(s.grad_scale) * row_factor[size_t(r)];
    for (int64_t c = 0; c < cols; ++c) f(c, grad(r)[c] * scale * of_columns[c]);
  }

  // The root of the mean of squares that add_row(row, sum) adds up.
  template <class AddRow>
  double root_mean_square(const AddRow& add_row) const {
    std::vector<double> squares(size_t(all_rows), 0.0);
    parallel_each(all_rows, numel(), [&](int64_t r) { add_row(r, squares[size_t(r)]); });
    double sum = 0;
    for (const double one : squares) sum += one;
    return std::sqrt(sum / double(numel()));
  }
  double root_of_param() const {
    return root_mean_square([&](int64_t r, double& sum) {
      for (int64_t c = 0; c < cols; ++c) sum += double(param(r)[c]) * double(param(r)[c]);
    });
  }

  void update_param(const Factors& s) {
    const double root = root_mean_square(
        [&](int64_t r, double& sum) { for_updates(s, r, [&](int64_t, float u) { sum += double(u) * double(u); }); });
    const float rate = float(s.lr / std::max(1.0, root / s.clip_threshold)), decay = float(1 - s.lr * s.weight_decay);
    parallel_each(all_rows, numel(), [&](int64_t r) {
      for_updates(s, r, [&](int64_t c, float u) { param(r)[c] = param(r)[c] * decay - rate * u; });
    });
  }
};

}  // namespace

void adafactor(const RuleStep& step) {
  for (const OptimizerSlot& slot : step.slots) {
    if (slot.param.numel() == 0) continue;
    const AdafactorRule& rule = step.rule.adafactor;
    Moments moments(slot);
    const double scale = rule.scale_parameter ? std::max(rule.scale_eps, moments.root_of_param()) : 1;
    const Factors factors{.grad_scale = double(step.grad_scale),
                          .keep = 1 - std::pow(double(step.scalars[kSteps]), rule.decay_rate),
                          .eps = rule.eps,
                          .clip_threshold = rule.clip_threshold,
                          .lr = double(slot.rate) * double(step.scalars[kLr]) * scale,
                          .weight_decay = double(step.rule.weight_decay)};
    moments.update_rows(factors);
    moments.update_columns(factors);
    moments.update_param(factors);
  }
}

}  // namespace wick
