#include "wick/train/rank_watch.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace wick {
namespace {

// A step of a device at the most, and the way out of it; 30 seconds are promised.
constexpr std::chrono::seconds kTimeToEnd{20};

}  // namespace

RankWatch::RankWatch(Ranks& ranks) : ranks_(ranks) {
  if (ranks.count() > 1) ranks.on_failure([this](const std::string& failure) { end(failure); });
}

RankWatch::~RankWatch() {
  if (ranks_.count() == 1) return;
  ranks_.on_failure({});
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

void RankWatch::set_abort(std::function<void()> abort) {
  const std::lock_guard lock(mutex_);
  abort_ = std::move(abort);
  if (failed_ && abort_) abort_();
}

// On the watching thread of the ranks, which has to go on.
void RankWatch::end(const std::string& failure) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  watchdog_ = std::thread([this, failure] {
    std::unique_lock held(mutex_);
    if (abort_) abort_();
    if (changed_.wait_for(held, kTimeToEnd, [this] { return over_; })) return;
    std::fprintf(stderr, "wick: %s\n", failure.c_str());
    std::_Exit(1);
  });
}

}  // namespace wick
