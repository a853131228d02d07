// The ranks of a run: processes, or threads of one, that train together.
//
// Each rank but the first has one connection, to rank 0, which a thread of its own watches: it says that this rank
// lives, hears from other ranks, and tells when one is lost. So the rank's own work may take as long as it likes, and a
// collective call needs no timeout: it ends with all others or with the failure of one.
//
// The first failure is the run's: it stays, all ranks learn of it, and every later call throws it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "wick/core/error.h"
#include "wick/ranks/launch.h"

namespace wick {

// Another rank is lost or has failed: "rank 2 on host-b: killed or cut off: its connection closed".
class RankError : public Error {
 public:
  using Error::Error;
};

class Connections;

class Ranks {
 public:
  Ranks();  // alone: every call below returns at once
  // Waits until all ranks have come, each with the same count and place of rank 0. Throws Error if some do not.
  static std::unique_ptr<Ranks> connect(const RankPlace& place);
  // Ranks of this process, each for a thread of its own, by rank.
  static std::vector<std::unique_ptr<Ranks>> of_threads(int count,
                                                        std::chrono::milliseconds silence = RankPlace().silence);
  // Says goodbye, so that nobody takes this rank for lost; all that it sent arrives. Takes no longer than a lost
  // rank may stay silent.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int count() const { return count_; }
  bool is_first() const { return rank_ == 0; }
  bool are_threads() const { return are_threads_; }  // of this process, all of them

  // Collective calls: all ranks make the same ones in the same order, each from one thread. They throw RankError once
  // a rank is lost, has failed, has ended while another one waits for it, or is in another call; values and data are
  // in no defined state then.

  // The messages of all, by rank.
  std::vector<std::string> exchange(const std::string& message);
  // Values become ((x_0 + x_1) + x_2) + ..., the same bits for all ranks. Waits for nobody if there are none.
  void sum(float* values, size_t count);
  // Data become rank 0's, which does not wait until all have them.
  void broadcast(void* data, size_t bytes);
  // Rank 0's data become those of rank `from`, which does not wait until it has them. Other ranks take no part.
  void fetch(void* data, size_t bytes, int from);
  // Returns once all have called it.
  void barrier();

  // These may be called from any thread.

  // Tells all other ranks why this rank ends; from then on their calls throw it, and its own do. Waits up to half a
  // second for the message to leave.
  void fail(const std::string& cause) noexcept;
  void check() const;  // throws RankError if there is a failure
  std::optional<std::string> failure() const;
  // Is called on the watching thread, once, when another rank fails or has failed; so that a wait elsewhere (NCCL)
  // can be ended. It must not throw, nor use this object but for failure(). An earlier callback is replaced, and does
  // not run any more once this returns.
  void on_failure(std::function<void(const std::string& failure)> callback);

 private:
  Ranks(int rank, int count, std::unique_ptr<Connections> others);

  int rank_ = 0, count_ = 1;
  bool are_threads_ = false;
  std::unique_ptr<Connections> others_;  // null if alone
};

}  // namespace wick
