// How a model's blocks run: which of them again in backward instead of keeping their inner tensors, where the inputs of
// those wait for it, and which blocks have weights that come from the host.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "wick/autograd/block_stream.h"
#include "wick/autograd/checkpoint.h"
#include "wick/autograd/host_checkpoints.h"

namespace wick {

// What a block's forward computes, and what it keeps for backward beside its inputs and outputs.
struct BlockCost {
  double flops = 0, bytes = 0;
};

class BlockSchedule {
 public:
  BlockSchedule() = default;  // nothing runs twice
  static BlockSchedule recomputing_all(bool all = true) {
    BlockSchedule s;
    s.recomputes_all_ = all;
    return s;
  }
  // Blocks by their place in a forward pass.
  static BlockSchedule recomputing(std::set<size_t> blocks) {
    BlockSchedule s;
    s.recomputed_ = std::move(blocks);
    return s;
  }
  // Nothing runs twice, and the cost of each block that runs is added to `costs`, in their order. `spent` tells what
  // was computed and is in use so far.
  static BlockSchedule metered(std::function<BlockCost()> spent, std::vector<BlockCost>& costs) {
    BlockSchedule s;
    s.meter_ = std::make_shared<const Meter>(Meter{std::move(spent), costs});
    return s;
  }

  // The same with the weights of `blocks` blocks on the host, evenly spread; of all where there are fewer. Staged: in
  // ordinary memory there.
  static constexpr size_t kAll = size_t(-1);
  BlockSchedule with_streamed(size_t blocks, bool staged = false) const {
    BlockSchedule s = *this;
    s.streamed_ = blocks;
    s.staged_ = staged;
    return s;
  }
  size_t streamed() const { return streamed_; }
  bool is_staged() const { return staged_; }
  // The same; weights on the host are those of all threads that have the same `copies`. Null: each has its own.
  BlockSchedule with_host_copies(std::shared_ptr<HostCopies> copies) const {
    BlockSchedule s = *this;
    s.copies_ = std::move(copies);
    return s;
  }
  // The place of the masters of a part of the model: "t5".
  MasterPlace masters(const std::string& part) const { return {.staged = staged_, .shared = copies_, .name = part}; }
  // The same; what is kept of blocks that run twice lies on the host. For one model: copies share that memory.
  BlockSchedule with_checkpoints_on_host() const {
    BlockSchedule s = *this;
    s.host_ = std::make_shared<HostCheckpoints>();
    return s;
  }
  // Before the model is made, with the bytes of its blocks: what loads its weights and runs its blocks.
  void stream(std::shared_ptr<BlockStream> blocks) { stream_ = std::move(blocks); }

  bool recomputes_any() const { return recomputes_all_ || !recomputed_.empty(); }

  // Runs the blocks of one forward pass, in their order.
  class Pass {
   public:
    explicit Pass(const BlockSchedule& of) : of_(of) {
      if (of_.host_) of_.host_->begin_pass();
    }

    // `block` is copied into the tape, as by checkpoint(): wrap one of a model in std::cref.
    template <class Block, class... Inputs>
    auto operator()(const Block& block, const Inputs&... x) {
      const size_t place = next_++;
      if (of_.meter_) return of_.meter_->run(block, x...);
      if (!of_.stream_) return run(place, block, x...);
      of_.stream_->enter(place, BlockStream::Way::forward);
      return arriving(place, run(place, block, x...));
    }
    void skip() { ++next_; }  // a block that does not run in this pass

   private:
    template <class Block, class... Inputs>
    auto run(size_t place, const Block& block, const Inputs&... x) const {
      if (!of_.recomputes_all_ && !of_.recomputed_.contains(place)) return block(x...);
      if (!of_.host_) return checkpoint(block, x...);
      of_.host_->begin_block();
      return checkpoint_by(KeepOnHost{of_.host_}, block, x...);
    }
    Tensor arriving(size_t place, const Tensor& y) const { return with_arrival(of_.stream_, place, y); }
    template <class Several>
    Several arriving(size_t place, Several all) const {
      for (Tensor& y : all) y = arriving(place, y);
      return all;
    }

    const BlockSchedule& of_;
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

  bool recomputes_all_ = false;
  std::set<size_t> recomputed_;
  size_t streamed_ = 0;
  bool staged_ = false;
  std::shared_ptr<HostCopies> copies_;
  std::shared_ptr<BlockStream> stream_;
  std::shared_ptr<HostCheckpoints> host_;
  std::shared_ptr<const Meter> meter_;
};

}  // namespace wick
