// The end of a run of which another rank has failed: what waits on a device for that rank is ended, and so is the whole
// process, should it not have come to its own end in time.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "wick/ranks/ranks.h"

namespace wick {

class RankWatch {
 public:
  explicit RankWatch(Ranks& ranks);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // `abort` is called on a thread of its own, at once where a rank has failed already. None: what it would end is gone.
  void set_abort(std::function<void()> abort);

 private:
  void end(const std::string& failure);

  Ranks& ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> abort_;
  bool failed_ = false, over_ = false;
  std::thread watchdog_;
};

}  // namespace wick
