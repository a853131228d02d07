// Every kind of adapter on a linear of kInputs inputs: factors as a file has them, drawn at random, and what its
// formula makes of a weight and a bias, written out on dense matrices in double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "wick/core/rng.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick::reference {

inline constexpr int64_t kInputs = 12;

struct Matrix {  // by rows
  int64_t rows = 0, columns = 0;
  std::vector<double> values = {};

  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), columns(c), values(size_t(r * c)) {}
  // Of all axes but the last, and that.
  explicit Matrix(const Tensor& t) : rows(t.rank() > 1 ? t.numel() / t.dim(-1) : t.numel()) {
    columns = rows > 0 ? t.numel() / rows : 0;
    if (!is_float(t.dtype())) return;  // a mark
    for (const float value : cast(t, DType::f32).to_vector()) values.push_back(value);
  }
  double& operator()(int64_t i, int64_t j) { return values[size_t(i * columns + j)]; }
  double operator()(int64_t i, int64_t j) const { return values[size_t(i * columns + j)]; }
};

template <class F>
Matrix matrix(int64_t rows, int64_t columns, const F& f) {
  Matrix m(rows, columns);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) m(i, j) = f(i, j);
  return m;
}
inline Matrix identity(int64_t n) {
  return matrix(n, n, [](int64_t i, int64_t j) { return i == j; });
}
inline Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t k = 0; k < a.columns; ++k)
      for (int64_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}
inline Matrix operator*(double s, Matrix a) {
  for (double& value : a.values) value *= s;
  return a;
}
inline Matrix operator+(Matrix a, const Matrix& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
  return a;
}
inline Matrix transposed(const Matrix& a) {
  return matrix(a.columns, a.rows, [&](int64_t i, int64_t j) { return a(j, i); });
}
inline Matrix rows_of(const Matrix& a, int64_t first, int64_t end) {
  return matrix(end - first, a.columns, [&](int64_t i, int64_t j) { return a(first + i, j); });
}
inline void put_rows(Matrix& a, int64_t first, const Matrix& rows) {
  for (int64_t i = 0; i < rows.rows; ++i)
    for (int64_t j = 0; j < rows.columns; ++j) a(first + i, j) = rows(i, j);
}

using Tensors = std::map<std::string, Tensor>;  // by the end of their keys: ".lora_down.weight"
using Factors = std::map<std::string, Matrix>;

inline Factors factors_of(const Tensors& tensors) {
  Factors all;
  for (const auto& [suffix, tensor] : tensors) all[suffix] = Matrix(tensor);
  return all;
}

struct Layer {
  Matrix w, b;  // [out, in] and [out, 1]
};

struct Kind {
  const char* name;
  // The factors of a module with so many outputs.
  std::function<Tensors(int64_t out, uint64_t seed)> fresh;
  // The weight with the adapter in it, with a strength m. The norms of DoRA are those with the factors `still`:
  // constants to its gradient.
  std::function<Matrix(const Matrix& w, const Factors& f, double m, const Factors& still)> weight;
  std::function<Matrix(const Matrix& b, const Factors& f, double m)> bias = {};  // unless it stays
  bool is_trained = false;

  Layer on(const Layer& below, const Factors& f, double m) const {
    return {weight ? weight(below.w, f, m, f) : below.w, bias ? bias(below.b, f, m) : below.b};
  }
};

inline Tensor drawn(const Shape& shape, uint64_t seed, float deviation = 1) {
  Rng rng(seed);
  return random_normal(shape, rng) * deviation;
}

// By elements: a column b times or plus a column.
inline Matrix times(const Matrix& b, const Matrix& gain, double m) {
  return matrix(b.rows, b.columns,
                [&](int64_t i, int64_t j) { return b(i, j) * (1 + m * (gain.values[size_t(i)] - 1)); });
}

inline double alpha_over(const Factors& f, int64_t rank) {
  const auto alpha = f.find(".alpha");
  return alpha == f.end() ? 1 : alpha->second.values[0] / double(rank);
}

// Changes D of a weight W + D.

inline Matrix lora_change(const Factors& f) {
  const Matrix& up = f.at(".lora_up.weight");
  return alpha_over(f, up.columns) * (up * f.at(".lora_down.weight"));
}
inline Matrix loha_change(const Factors& f) {
  const Matrix a = f.at(".hada_w1_a") * f.at(".hada_w1_b"), b = f.at(".hada_w2_a") * f.at(".hada_w2_b");
  const double s = alpha_over(f, f.at(".hada_w1_a").columns);
  return matrix(a.rows, a.columns, [&](int64_t i, int64_t j) { return s * a(i, j) * b(i, j); });
}
inline Matrix lokr_change(const Factors& f) {
  const bool whole = f.contains(".lokr_w2");
  const Matrix& first = f.at(".lokr_w1");
  const Matrix second = whole ? f.at(".lokr_w2") : f.at(".lokr_w2_a") * f.at(".lokr_w2_b");
  const double s = whole ? 1 : alpha_over(f, f.at(".lokr_w2_b").rows);
  return matrix(first.rows * second.rows, first.columns * second.columns, [&](int64_t i, int64_t j) {
    return s * first(i / second.rows, j / second.columns) * second(i % second.rows, j % second.columns);
  });
}

using Change = Matrix (*)(const Factors&);

inline Kind added(const char* name, std::function<Tensors(int64_t, uint64_t)> fresh, Change change,
                  bool trained = true) {
  return {name,
          std::move(fresh),
          [change](const Matrix& w, const Factors& f, double m, const Factors&) { return w + m * change(f); },
          {},
          trained};
}

// DoRA with a magnitude of outputs or of inputs. Its strength is between the layer below and the whole.
inline Kind with_magnitude(const char* name, const Kind& kind, Change change, bool of_inputs) {
  const auto fresh = [plain = kind.fresh, of_inputs](int64_t out, uint64_t seed) {
    Tensors all = plain(out, seed);
    const Shape shape = of_inputs ? Shape{1, kInputs} : Shape{out, 1};
    all[".dora_scale"] = drawn(shape, seed + 20, 0.3f) + 3.0f;
    return all;
  };
  const auto weight = [change, of_inputs](const Matrix& w, const Factors& f, double m, const Factors& still) {
    const Matrix base = w + change(still), &magnitude = f.at(".dora_scale"), whole = w + change(f);
    std::vector<double> squares(size_t(of_inputs ? w.columns : w.rows));
    for (int64_t i = 0; i < w.rows; ++i)
      for (int64_t j = 0; j < w.columns; ++j) squares[size_t(of_inputs ? j : i)] += base(i, j) * base(i, j);
    return matrix(w.rows, w.columns, [&](int64_t i, int64_t j) {
      const auto at = size_t(of_inputs ? j : i);
      return (1 - m) * w(i, j) + m * whole(i, j) * magnitude.values[at] / std::sqrt(squares[at]);
    });
  };
  return {name, fresh, weight, {}, true};
}

// Rotations. I + m (R - I), where R is (I + S) (I - S)^-1 by its series, of a small S.
inline Matrix cayley(const Matrix& s, double m) {
  Matrix sum(s.rows, s.rows), power = identity(s.rows);
  for (int term = 1; term < 100; ++term) power = power * s, sum = sum + 2 * power;
  return identity(s.rows) + m * sum;
}
inline Matrix skew(const Matrix& b, double s) { return s * (b + -1 * transposed(b)); }

// The rows of w in another order; blocks of them times f(block's number); and back.
template <class Order, class Block>
Matrix rows_by_blocks(const Matrix& w, int64_t n, const Order& order, const Block& block) {
  Matrix there(w.rows, w.columns), back(w.rows, w.columns);
  for (int64_t i = 0; i < w.rows; ++i) put_rows(there, order(i), rows_of(w, i, i + 1));
  for (int64_t k = 0; k * n < w.rows; ++k) put_rows(there, k * n, block(k) * rows_of(there, k * n, (k + 1) * n));
  for (int64_t i = 0; i < w.rows; ++i) put_rows(back, i, rows_of(there, order(i), order(i) + 1));
  return back;
}
inline int64_t in_place(int64_t i) { return i; }

inline Matrix oft_weight(const Matrix& w, const Factors& f, double m, const Factors&) {
  const Matrix& blocks = f.at(".oft_blocks");
  const auto block = [&](int64_t k) { return transposed(cayley(skew(rows_of(blocks, 4 * k, 4 * k + 4), 1), m)); };
  return times(rows_by_blocks(w, 4, in_place, block), f.at(".rescale"), m);
}

// Rows 2^i N / 2 apart are paired by factor i.
inline Matrix butterfly_weight(const Matrix& w, const Factors& f, double m, const Factors&) {
  const Matrix& blocks = f.at(".oft_blocks");
  Matrix turned = w;
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t h = (int64_t{1} << i) * 2;
    const auto order = [h](int64_t row) { return row / (2 * h) * 2 * h + row % h * 2 + row % (2 * h) / h; };
    const auto block = [&](int64_t k) {
      const int64_t at = i * w.rows + 4 * k;
      return cayley(skew(rows_of(blocks, at, at + 4), 1), m);
    };
    turned = rows_by_blocks(turned, 4, order, block);
  }
  return turned;
}

// The five terms that OneTrainer has; W R^T.
inline Matrix input_rotation_weight(const Matrix& w, const Factors& f, double m, const Factors&) {
  const Matrix& entries = f.at(".oft_R.weight");
  const auto block = [&](int64_t k) {
    Matrix s(4, 4);
    int64_t at = 0;
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t j = i + 1; j < 4; ++j, ++at) s(i, j) = entries(k, at), s(j, i) = -entries(k, at);
    return identity(4) + m * (2 * s + 2 * (s * s) + 2 * (s * s * s) + s * s * s * s);
  };
  return transposed(rows_by_blocks(transposed(w), 4, in_place, block));
}

// S W M^T with M = M_1 M_0, where M_i has blocks of two channels that lie 2^i apart.
inline Matrix input_butterfly_weight(const Matrix& w, const Factors& f, double m, const Factors&) {
  Matrix columns = transposed(w);
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t apart = int64_t{1} << i;
    const auto order = [apart](int64_t c) { return c / (2 * apart) * 2 * apart + c % apart * 2 + c / apart % 2; };
    const auto block = [&](int64_t k) {
      const int64_t at = i * kInputs + 2 * k;
      return cayley(skew(rows_of(f.at(".boft_R"), at, at + 2), -0.5), m);
    };
    columns = rows_by_blocks(columns, 2, order, block);
  }
  return times(transposed(columns), f.at(".boft_s"), m);
}

inline Matrix plus(const Matrix& b, const Matrix& shift, double m) { return b + m * shift; }

inline std::vector<Kind> all_kinds() {
  const auto lora = [](int64_t out, uint64_t seed) {
    return Tensors{{".lora_down.weight", drawn({2, kInputs}, seed, 0.7f)},
                   {".lora_up.weight", drawn({out, 2}, seed + 1, 0.7f)},
                   {".alpha", full({}, 1.5f)}};
  };
  const auto loha = [](int64_t rank) {
    return [rank](int64_t out, uint64_t seed) {
      return Tensors{{".hada_w1_a", drawn({out, rank}, seed, 0.7f)},
                     {".hada_w1_b", drawn({rank, kInputs}, seed + 1, 0.7f)},
                     {".hada_w2_a", drawn({out, rank}, seed + 2, 0.7f)},
                     {".hada_w2_b", drawn({rank, kInputs}, seed + 3, 0.7f)},
                     {".alpha", full({}, 1.5f)}};
    };
  };
  const auto lokr = [](int64_t out, uint64_t seed) {
    return Tensors{{".lokr_w1", drawn({2, 3}, seed)}, {".lokr_w2", drawn({out / 2, 4}, seed + 1, 0.7f)}};
  };
  const auto lokr_low = [](int64_t out, uint64_t seed) {
    return Tensors{{".lokr_w1", drawn({2, 3}, seed)},
                   {".lokr_w2_a", drawn({out / 2, 2}, seed + 1, 0.7f)},
                   {".lokr_w2_b", drawn({2, 4}, seed + 2, 0.7f)},
                   {".alpha", full({}, 1.5f)}};
  };
  const auto one = [](const char* suffix, const auto& shape, float around, float deviation) {
    return [=](int64_t out, uint64_t seed) { return Tensors{{suffix, drawn(shape(out), seed, deviation) + around}}; };
  };
  const auto ia3 = [](bool of_inputs) {
    return [of_inputs](int64_t out, uint64_t seed) {
      return Tensors{{".weight", drawn({of_inputs ? kInputs : out}, seed, 0.4f)},
                     {".on_input", full({}, of_inputs ? 1 : 0, DType::i64)}};
    };
  };
  const auto gain = [](const char* suffix, bool of_inputs, double from) {
    return [=](const Matrix& w, const Factors& f, double m, const Factors&) {
      const std::vector<double>& all = f.at(suffix).values;
      return matrix(w.rows, w.columns,
                    [&](int64_t i, int64_t j) { return w(i, j) * (1 + m * (all[size_t(of_inputs ? j : i)] - from)); });
    };
  };
  const auto shift = [](const char* suffix) {
    return [=](const Matrix& b, const Factors& f, double m) { return plus(b, f.at(suffix), m); };
  };
  const auto with = [](const auto& fresh, const char* suffix) {
    return [=](int64_t out, uint64_t seed) {
      Tensors all = fresh(out, seed);
      all[suffix] = drawn({out}, seed + 30);
      return all;
    };
  };

  const Kind plain = added("lora", lora, lora_change), loha_low = added("loha", loha(1), loha_change),
             lokr_whole = added("lokr", lokr, lokr_change);
  const auto full_weight = [](const Matrix& w, const Factors& f, double m, const Factors&) {
    return w + m * f.at(".diff");
  };
  const auto set_weight = [](const Matrix& w, const Factors& f, double m, const Factors&) {
    return (1 - m) * w + m * f.at(".set_weight");
  };
  const auto glora_weight = [](const Matrix& w, const Factors& f, double m, const Factors&) {
    const Matrix own = f.at(".b1.weight") * f.at(".b2.weight"), mixed = w * f.at(".a1.weight") * f.at(".a2.weight");
    return w + m * (own + mixed);
  };
  const auto glora = [](int64_t out, uint64_t seed) {
    return Tensors{{".a1.weight", drawn({kInputs, 2}, seed, 0.3f)},
                   {".a2.weight", drawn({2, kInputs}, seed + 1, 0.7f)},
                   {".b1.weight", drawn({out, 2}, seed + 2, 0.7f)},
                   {".b2.weight", drawn({2, kInputs}, seed + 3, 0.7f)}};
  };
  const auto oft = [](int64_t out, uint64_t seed) {
    return Tensors{{".oft_blocks", drawn({out / 4, 4, 4}, seed, 0.1f)},
                   {".rescale", drawn({out, 1}, seed + 1, 0.3f) + 1.0f}};
  };
  const auto peft_boft = [](int64_t out, uint64_t seed) {
    return Tensors{{".boft_R", drawn({2, kInputs / 2, 2, 2}, seed, 0.3f)},
                   {".boft_s", drawn({out, 1}, seed + 1, 0.3f) + 1.0f}};
  };
  const auto matrix_shape = [](int64_t out) { return Shape{out, kInputs}; };
  const auto bias_shape = [](int64_t out) { return Shape{out}; };

  // PEFT's bias of a LoRA is scaled as its product is.
  const auto lora_bias = [](const Matrix& b, const Factors& f, double m) {
    return plus(b, f.at(".lora_up.bias"), m * alpha_over(f, f.at(".lora_up.weight").columns));
  };
  const auto peft_ia3_bias = [](const Matrix& b, const Factors& f, double m) { return times(b, f.at(".ia3_l"), m); };

  return {
      plain,
      {"lora_bias", with(lora, ".lora_up.bias"), plain.weight, lora_bias},
      {"lora_and_difference_of_bias", with(lora, ".diff_b"), plain.weight, shift(".diff_b")},
      with_magnitude("dora_of_outputs", plain, lora_change, false),
      with_magnitude("dora_of_inputs", plain, lora_change, true),
      loha_low,
      added("loha_dense", loha(4), loha_change),
      with_magnitude("loha_dora_of_outputs", loha_low, loha_change, false),
      with_magnitude("loha_dora_of_inputs", loha_low, loha_change, true),
      lokr_whole,
      added("lokr_low", lokr_low, lokr_change),
      with_magnitude("lokr_dora_of_outputs", lokr_whole, lokr_change, false),
      with_magnitude("lokr_dora_of_inputs", lokr_whole, lokr_change, true),
      {"difference", with(one(".diff", matrix_shape, 0, 0.5f), ".diff_b"), full_weight, shift(".diff_b")},
      {"difference_of_bias", one(".diff_b", bias_shape, 0, 1), {}, shift(".diff_b")},
      {"set_weight", one(".set_weight", matrix_shape, 0, 1), set_weight},
      {"glora", glora, glora_weight},
      {"ia3_of_outputs", ia3(false), gain(".weight", false, 0)},
      {"ia3_of_inputs", ia3(true), gain(".weight", true, 0)},
      {"peft_ia3_of_outputs",
       one(
           ".ia3_l",
           [](int64_t out) {
             return Shape{out, 1};
           },
           1, 0.4f),
       gain(".ia3_l", false, 1), peft_ia3_bias},
      {"peft_ia3_of_inputs",
       one(
           ".ia3_l",
           [](int64_t) {
             return Shape{1, kInputs};
           },
           1, 0.4f),
       gain(".ia3_l", true, 1)},
      {"oft", oft, oft_weight},
      {"boft",
       one(
           ".oft_blocks",
           [](int64_t out) {
             return Shape{2, out / 4, 4, 4};
           },
           0, 0.1f),
       butterfly_weight},
      {"peft_oft",
       one(
           ".oft_R.weight",
           [](int64_t) {
             return Shape{3, 6};
           },
           0, 0.2f),
       input_rotation_weight},
      {"peft_boft", peft_boft, input_butterfly_weight},
  };
}

}  // namespace wick::reference
