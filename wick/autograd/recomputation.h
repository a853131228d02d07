// Which of a model's blocks run again in backward instead of keeping their inner tensors.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "wick/autograd/checkpoint.h"

namespace wick {

// What a block's forward computes, and what it keeps for backward beside its inputs and outputs.
struct BlockCost {
  double flops = 0, bytes = 0;
};

class Recomputation {
 public:
  Recomputation() = default;  // nothing runs twice
  static Recomputation of_all(bool all = true) {
    Recomputation r;
    r.all_ = all;
    return r;
  }
  // Blocks by their place in a forward pass.
  static Recomputation of(std::set<size_t> blocks) {
    Recomputation r;
    r.blocks_ = std::move(blocks);
    return r;
  }
  // Nothing runs twice, and the cost of each block that runs is added to `costs`, in their order. `spent` tells what
  // was computed and is in use so far.
  static Recomputation metered(std::function<BlockCost()> spent, std::vector<BlockCost>& costs) {
    Recomputation r;
    r.meter_ = std::make_shared<const Meter>(Meter{std::move(spent), costs});
    return r;
  }

  bool is_any() const { return all_ || !blocks_.empty(); }

  // Runs the blocks of one forward pass, in their order.
  class Pass {
   public:
    explicit Pass(const Recomputation& of) : of_(of) {}

    // `block` is copied into the tape, as by checkpoint(): wrap one of a model in std::cref.
    template <class Block, class... Inputs>
    auto operator()(const Block& block, const Inputs&... x) {
      const size_t place = next_++;
      if (of_.meter_) return of_.meter_->run(block, x...);
      return of_.all_ || of_.blocks_.contains(place) ? checkpoint(block, x...) : block(x...);
    }

   private:
    const Recomputation& of_;
    size_t next_ = 0;
  };
  Pass pass() const { return Pass(*this); }

 private:
  struct Meter {
    std::function<BlockCost()> spent;
    std::vector<BlockCost>& costs;

    template <class Block, class... Inputs>
    auto run(const Block& block, const Inputs&... x) const {
      const BlockCost before = spent();
      auto y = block(x...);
      const BlockCost after = spent();
      costs.push_back({after.flops - before.flops, after.bytes - before.bytes - bytes_of(y)});
      return y;
    }
    static double bytes_of(const Tensor& t) { return double(t.numel()) * double(size_of(t.dtype())); }
    template <class Several>
    static double bytes_of(const Several& all) {
      double sum = 0;
      for (const Tensor& t : all) sum += bytes_of(t);
      return sum;
    }
  };

  bool all_ = false;
  std::set<size_t> blocks_;
  std::shared_ptr<const Meter> meter_;
};

}  // namespace wick
