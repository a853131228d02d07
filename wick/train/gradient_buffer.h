// The gradients of a step, summed over its batches and ranks, in one flat buffer. In the last batch of a step parts of
// the buffer are summed over the ranks while backward still runs: a part as soon as its gradients are complete.
//
// Parameters lie in the order in which the first backward completed their gradients, and parts are summed in the order
// of their offsets, so that all ranks sum the same elements in the same order, whatever their batches.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "wick/autograd/tape.h"
#include "wick/nn/weights.h"
#include "wick/train/rank_sums.h"

namespace wick {

class GradientBuffer {
 public:
  // `ranks`: null where there is one.
  GradientBuffer(const std::vector<Parameter>& parameters, RankSums* ranks);

  const Tensor& loss() const { return loss_; }  // [1]; summed over ranks with the last part

  void clear();  // before the first of several batches: their gradients are added
  // Around a batch's backward into `grads`, which stay where they are until end(). A batch that looks like an earlier
  // one (`kind`: the shapes of its inputs) completes its gradients alike. The last one's sums are those of all ranks.
  enum class Place { alone, before_others, last };
  void begin(Grads& grads, const std::string& kind, Place place);
  void end(Grads& grads);
  // Behind the update: f32, flat, for anything that is as large as all gradients, until the next batch begins. The loss
  // behind them stays.
  Tensor room() const { return all_.window({all_.numel() - 1}, {1}); }
  Grads sums() const;  // windows of the buffer, each under its parameter's identity

 private:
  using Counts = std::vector<int64_t>;  // of the addends of each parameter's gradient

  void arrange(const std::vector<int64_t>& last_added);
  void added(Grads& grads, uint64_t id);
  Tensor room_of(const std::vector<uint64_t>& ids) const;
  void write(Grads& grads, size_t begin, size_t end);
  void sum_part(Grads& grads);
  Tensor window(size_t parameter) const;

  std::vector<Parameter> parameters_;
  RankSums* ranks_;
  Tensor all_, loss_;
  std::unordered_map<uint64_t, size_t> numbers_;  // of parameters, by identity
  std::vector<size_t> order_;                     // parameters by offset
  std::vector<int64_t> offsets_;                  // of parameters
  std::vector<size_t> parts_;                     // ends, in order_
  std::vector<size_t> part_of_;                   // of parameters

  std::map<std::string, Counts> known_;  // by kind
  // Of the batch under way.
  std::string kind_;
  Counts seen_;
  const Counts* expected_ = nullptr;  // where parts are summed on the way
  std::vector<int64_t> last_added_;   // when, of parameters
  std::vector<size_t> missing_;       // parameters of each part whose gradients are not complete
  size_t next_part_ = 0;
  int64_t clock_ = 0;
  Place place_ = Place::alone;
};

}  // namespace wick
