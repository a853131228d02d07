// Work shared among OpenMP's threads: the only file that opens parallel regions. A region always has the whole team:
// OpenMP does not count a region of one thread as parallel, so a oneDNN product inside it would open another, for which
// libgomp starts and ends threads. Too little work runs without a region.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <exception>

namespace wick {

inline constexpr int64_t kParallelElements = 1 << 15;  // with fewer, waking a second thread costs more than it brings

// A thread's place among those that share some work.
class TeamMember {
 public:
  TeamMember(int64_t thread, int64_t threads) : thread_(thread), threads_(threads) {}

  int64_t thread() const { return thread_; }
  int64_t begin(int64_t tasks) const { return tasks * thread_ / threads_; }  // of its part of [0, tasks)
  int64_t end(int64_t tasks) const { return tasks * (thread_ + 1) / threads_; }

 private:
  int64_t thread_, threads_;
};

// Calls body(member) on every thread, or on this one alone where sharing is not `worthwhile`. The first exception
// of a body is rethrown when all have ended.
template <class Body>
void with_team(bool worthwhile, const Body& body) {
  if (!worthwhile || omp_get_max_threads() == 1 || omp_in_parallel()) return body(TeamMember(0, 1));
  std::exception_ptr problem;
#pragma omp parallel
  try {
    body(TeamMember(omp_get_thread_num(), omp_get_num_threads()));
  } catch (...) {
#pragma omp critical(wick_problem)
    if (!problem) problem = std::current_exception();
  }
  if (problem) std::rethrow_exception(problem);
}

// Calls body(begin, end) on consecutive parts of [0, tasks), one part a thread. `elements` is the work in all of them.
template <class Body>
void parallel_for(int64_t tasks, int64_t elements, const Body& body) {
  if (tasks <= 0) return;
  with_team(tasks > 1 && elements >= kParallelElements,
            [&](const TeamMember& me) { body(me.begin(tasks), me.end(tasks)); });
}

// The same by calling task(index) for each.
template <class Task>
void parallel_each(int64_t tasks, int64_t elements, const Task& task) {
  parallel_for(tasks, elements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(i);
  });
}

// Calls task(index, thread) for every index below `count`, each on whichever thread is free.
template <class Task>
void parallel_tasks(int64_t count, const Task& task) {
  std::atomic<int64_t> next{0};
  with_team(count > 1, [&](const TeamMember& me) {
    for (int64_t i = next++; i < count; i = next++) task(i, me.thread());
  });
}

}  // namespace wick
