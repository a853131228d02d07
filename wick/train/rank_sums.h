// Sums over the ranks of a run, and values that come from several of them: by the device's own collectives, or from the
// host's memory over TCP.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "wick/backend/backend.h"
#include "wick/train/rank_watch.h"

namespace wick {

class RankSums {
 public:
  // Returns once all ranks have made theirs. Where `ranks` is alone, nothing is summed. `are_light`: CollectiveUse.
  RankSums(Ranks& ranks, RankWatch& watch, Backend& backend, bool are_light = false);
  // All ranks end theirs together, unless one has failed.
  ~RankSums();
  RankSums(const RankSums&) = delete;
  RankSums& operator=(const RankSums&) = delete;

  // x, contiguous f32, becomes the sum over all ranks, the same bits on each: on a device behind what was enqueued
  // before, and for what is enqueued behind join().
  void add(const Tensor& x);
  void join();
  // The first counts[0] elements of x, contiguous f32, become rank 0's, those behind them rank 1's, and so on, to the
  // bit; enqueued as add() is.
  void all_gather(const Tensor& x, const std::vector<int64_t>& counts);
  // Throws Error unless all ranks have the same text, which is about `what`. On the host: not in a captured step.
  void check_same(const char* what, const std::string& text);

  int rank() const { return ranks_.rank(); }
  int count() const { return ranks_.count(); }

 private:
  Ranks& ranks_;
  RankWatch& watch_;
  std::unique_ptr<Collective> collective_;
};

}  // namespace wick
