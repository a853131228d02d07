#include "wick/backend/cpu/parallel.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "wick/backend/cpu/futex.h"
#include "wick/core/cpus.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace wick {
namespace {

using Clock = std::chrono::steady_clock;

thread_local bool in_chunk = false;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Asks the scheduler for short time slices for this thread: its share of the processor stays as it is, but comes in
// smaller parts, and a thread that wakes need not wait until the slice of another program ends. So the threads of a job
// run at the same time beside busy programs. Linux 6.12 and newer; older ones ignore it.
void ask_for_short_slices() {
  struct {  // sched_setattr(2), which glibc 2.36 does not declare
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } wish{};
  if (::syscall(SYS_sched_getattr, 0, &wish, sizeof(wish), 0) != 0 || wish.policy != SCHED_OTHER) return;
  wish.size = sizeof(wish);
  wish.runtime = 500'000;  // ns
  ::syscall(SYS_sched_setattr, 0, &wish, 0);
}

// Whether a waiting thread may spin before it sleeps. Spinning saves the time of a wake-up where cores are idle, and
// takes time from the awaited thread where they are not. A gap between two looks at the clock shows that this thread
// lost its core.
class Spinning {
 public:
  explicit Spinning(bool allowed) : allowed_(allowed) {}

  // Spins until done() or for a while. Returns whether it is done.
  template <class Done>
  bool until(const Done& done) {
    if (done()) return true;
    Clock::time_point now = Clock::now();
    if (!allowed_ || now.time_since_epoch().count() < quiet_until_.load(std::memory_order_relaxed)) return false;
    const Clock::time_point end = now + kSpin;
    while (now < end) {
      for (int i = 0; i < 16; ++i) {
        pause();
        if (done()) return true;
      }
      const Clock::time_point before = now;
      now = Clock::now();
      if (now - before < kGap) continue;
      quiet_until_.store((now + kQuiet).time_since_epoch().count(), std::memory_order_relaxed);
      break;
    }
    return done();
  }

 private:
  static constexpr std::chrono::microseconds kSpin{60}, kGap{100};
  static constexpr std::chrono::milliseconds kQuiet{200};

  const bool allowed_;
  std::atomic<Clock::rep> quiet_until_{0};
};

// A job that threads may enter. Jobs outlive their callers' frames, so that a late thread finds a closed one, not none.
class alignas(64) Job {
 public:
  // Whether this caller may use it.
  bool claim() {
    uint32_t free = 0;
    return state_.load(std::memory_order_relaxed) == 0 && state_.compare_exchange_strong(free, kClaimed);
  }

  void open(int64_t count, const ChunkCall& body, int threads) {
    body_ = &body;
    const int64_t parts = std::min<int64_t>({count, threads, kMostParts});
    parts_.store(parts, std::memory_order_relaxed);
    for (int64_t p = 0; p < parts; ++p) part_[size_t(p)].set(count * p / parts, count * (p + 1) / parts);
    state_.store(kClaimed | kOpen, std::memory_order_release);
  }

  // Whether a thread of the pool is in: it has chunks to run and must leave.
  bool enter() {
    uint32_t state = state_.load(std::memory_order_relaxed);
    while (state & kOpen) {
      if (!any_left()) return false;
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void leave() {
    const uint32_t before = state_.fetch_sub(1, std::memory_order_release);
    if ((before & kCallerSleeps) && (before & kInside) == 1) wake(state_, 1);
  }

  // Runs chunks until all have begun: first those of its own part, which stay in this core's cache from job to job.
  void run(int64_t own) {
    in_chunk = true;
    const int64_t parts = parts_.load(std::memory_order_relaxed);
    for (int64_t p = 0; p < parts; ++p) run_part(part_[size_t((own + p) % parts)]);
    in_chunk = false;
  }

  bool any_left() const {
    const int64_t parts = parts_.load(std::memory_order_relaxed);
    return std::any_of(part_.begin(), part_.begin() + parts, [](const Part& part) { return part.any_left(); });
  }

  // Waits for the threads that are inside. The job is free after it.
  std::exception_ptr close(Spinning& spinning) {
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    const auto empty = [this] { return (state_.load(std::memory_order_acquire) & kInside) == 0; };
    if (!spinning.until(empty)) {
      uint32_t state = state_.fetch_or(kCallerSleeps) | kCallerSleeps;
      for (; state & kInside; state = state_.load(std::memory_order_acquire)) sleep_while(state_, state);
    }
    std::exception_ptr problem = std::exchange(problem_, nullptr);
    state_.store(0, std::memory_order_release);
    return problem;
  }

 private:
  static constexpr uint32_t kClaimed = 1u << 31, kOpen = 1u << 30, kCallerSleeps = 1u << 29, kInside = 0xffff;
  static constexpr int64_t kMostParts = 64;

  // Consecutive chunks. A late thread may look at it while the next job is set: only chunks that it takes are true.
  class alignas(64) Part {
   public:
    void set(int64_t begin, int64_t end) {
      next_.store(begin, std::memory_order_relaxed);
      end_.store(end, std::memory_order_relaxed);
    }
    bool any_left() const { return next_.load(std::memory_order_relaxed) < end_.load(std::memory_order_relaxed); }
    // A chunk that has not begun, or -1.
    int64_t take() {
      if (!any_left()) return -1;
      const int64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
      return chunk < end_.load(std::memory_order_relaxed) ? chunk : -1;
    }

   private:
    std::atomic<int64_t> next_{0}, end_{0};
  };

  void run_part(Part& part) {
    for (int64_t chunk = part.take(); chunk >= 0; chunk = part.take()) {
      try {
        (*body_)(chunk);
      } catch (...) {
        fail(std::current_exception());
      }
    }
  }

  void fail(std::exception_ptr problem) {
    for (Part& part : part_) part.set(0, 0);
    const std::lock_guard lock(problem_mutex_);
    if (!problem_) problem_ = std::move(problem);
  }

  std::atomic<uint32_t> state_{0};  // kClaimed, kOpen, kCallerSleeps, and how many threads of the pool are inside
  const ChunkCall* body_ = nullptr;
  std::atomic<int64_t> parts_{0};
  std::array<Part, kMostParts> part_;
  std::mutex problem_mutex_;
  std::exception_ptr problem_;
};

// The threads, which sleep where there is nothing to do, and the jobs of several callers at a time.
class Pool {
 public:
  explicit Pool(int threads) : spinning_(!cpu_limits().quota_binds) { grow(threads); }

  int threads() const { return threads_; }

  void grow(int threads) {
    threads_ = threads;
    while (started_ + 1 < threads) {
      try {
        std::thread([this, number = started_ + 1] { serve(number); }).detach();
      } catch (const std::system_error&) {  // the system gives no more: the others do the work
        return;
      }
      ++started_;
    }
  }

  void run(int64_t count, const ChunkCall& body) {
    static thread_local const bool asked = (ask_for_short_slices(), true);
    (void)asked;
    Job* const job = threads_ > 1 ? claim() : nullptr;
    if (!job) return run_alone(count, body);
    job->open(count, body, threads_);
    ring();
    job->run(0);
    if (const std::exception_ptr problem = job->close(spinning_)) std::rethrow_exception(problem);
  }

  static void run_alone(int64_t count, const ChunkCall& body) {
    for (int64_t i = 0; i < count; ++i) body(i);
  }

 private:
  Job* claim() {
    for (Job& job : jobs_)
      if (job.claim()) return &job;
    return nullptr;
  }

  // Tells the threads of a job. One that sleeps is woken, and wakes the next if there is work for it.
  void ring() {
    bell_.fetch_add(1);
    wake_one();
  }
  void wake_one() {
    if (sleepers_.load() > 0) wake(bell_, 1);
  }

  [[noreturn]] void serve(int number) {
    ask_for_short_slices();
    for (;;) {
      const uint32_t heard = bell_.load(std::memory_order_acquire);
      if (number < threads_ && work(number)) continue;
      if (spinning_.until([&] { return bell_.load(std::memory_order_acquire) != heard; })) continue;
      sleepers_.fetch_add(1);
      if (bell_.load() == heard) sleep_while(bell_, heard);
      sleepers_.fetch_sub(1);
    }
  }

  bool work(int number) {
    for (Job& job : jobs_) {
      if (!job.enter()) continue;
      if (threads_ > 2 && job.any_left()) wake_one();
      job.run(number);
      job.leave();
      return true;
    }
    return false;
  }

  static constexpr size_t kJobs = 8;  // callers at a time; more work alone

  Spinning spinning_;
  std::atomic<int> threads_{1};
  int started_ = 0;
  std::array<Job, kJobs> jobs_;
  alignas(64) std::atomic<uint32_t> bell_{0};
  alignas(64) std::atomic<int> sleepers_{0};
};

int wanted_threads() {
  const int usable = std::min(usable_cpus(), kMostThreads);
  for (const char* name : {"WICK_THREADS", "OMP_NUM_THREADS"})
    if (const char* text = std::getenv(name))
      if (const long given = std::strtol(text, nullptr, 10); given > 0) return int(std::min<long>(given, usable));
  return usable;
}

Pool& pool() {
  static Pool* const all = new Pool(wanted_threads());  // its threads outlive every static object
  return *all;
}

}  // namespace

int thread_count() { return pool().threads(); }
void set_thread_count(int count) { pool().grow(std::clamp(count, 1, kMostThreads)); }

void run_chunks(int64_t count, ChunkCall body) {
  if (count <= 1 || in_chunk) return Pool::run_alone(count, body);
  pool().run(count, body);
}

}  // namespace wick
