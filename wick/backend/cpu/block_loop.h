// One loop for everything elementwise: walks strided views of one shape together, in blocks of contiguous f32.
//
// Axes are ordered by the first operand's strides and merged where every operand allows it. A kernel sees plain arrays:
// an operand that is not contiguous f32 (strided, broadcast, bf16, f16) is staged block by block in the L1 cache.
// Blocks depend on the views alone, not on the number of threads.
#pragma once

#include <array>
#include <initializer_list>

#include "wick/backend/cpu/parallel.h"
#include "wick/core/tensor.h"

namespace wick {

// Views of one shape with axes of extent 1 dropped, sorted by descending stride and merged where possible. Rank >= 2.
struct MergedAxes {
  static constexpr int kOperands = 5;

  MergedAxes() = default;
  MergedAxes(const View* views, int count);

  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<std::array<int64_t, kMaxRank>, kOperands> stride{};  // of each view

 private:
  void append(const View* views, int axis);

  int count_ = 0;
};

class BlockLoop {
 public:
  // An output may be one of the inputs: a block is read before it is written.
  BlockLoop(std::initializer_list<View> outputs, std::initializer_list<View> inputs);

  int64_t blocks() const { return blocks_; }

  // Calls kernel(operands, n, block): operands[i] is the i-th view's part, n elements of contiguous f32.
  template <class Kernel>
  void run(const Kernel& kernel) const {
    parallel_for(blocks_, elements_, [&](int64_t begin, int64_t end) {
      Stage stage;
      for (int64_t block = begin; block < end; ++block) {
        const Place place = locate(block);
        Pointers operands{};
        stage_inputs(place, stage, operands);
        kernel(operands, place.rows * place.columns, block);
        unstage_outputs(place, stage);
      }
    });
  }

  using Pointers = std::array<float*, MergedAxes::kOperands>;

 private:
  static constexpr int64_t kStaged = 2048, kDirect = 8192;  // elements a block
  static constexpr int64_t kShortRow = 128;                 // shorter rows are staged together

  struct Operand {
    char* data;
    DType dtype;
    int64_t size;  // bytes an element
    bool direct;   // blocks are contiguous f32 in place
  };
  struct Place {
    int64_t rows, columns;
    std::array<char*, MergedAxes::kOperands> data;
  };
  struct Stage {
    alignas(64) std::array<std::array<float, kStaged>, MergedAxes::kOperands> buffer;
  };

  void choose_blocks();
  Place locate(int64_t block) const;
  void stage_inputs(const Place& place, Stage& stage, Pointers& operands) const;
  void unstage_outputs(const Place& place, const Stage& stage) const;

  MergedAxes axes_;
  std::array<Operand, MergedAxes::kOperands> operands_{};
  int outputs_, count_;
  int64_t elements_, blocks_;
  int64_t rows_ = 1, columns_ = 1;              // a block, at most
  int64_t row_blocks_ = 1, column_blocks_ = 1;  // blocks that cover the two innermost axes
};

}  // namespace wick
