// Work shared among the threads of this process. This file alone shares work.
//
// A job is cut into chunks. The caller runs chunks, and so does every thread of the pool that has a core: each takes
// the next chunk as it ends one. No thread is given work before it runs, so a thread that has no core delays nobody;
// the caller waits only for chunks that another thread has begun. The cut depends on the work alone, never on the
// number of threads, and so do the bits of the result. A job within a chunk runs on the thread of that chunk.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace wick {

inline constexpr int64_t kParallelElements = 1 << 15;  // with fewer, waking a second thread costs more than it brings
inline constexpr int kMostThreads = 256;

// How many threads may run chunks, the caller's included. Unless set: WICK_THREADS, or else OMP_NUM_THREADS, but no
// more than usable_cpus().
int thread_count();
// For tests and timings: 1 to kMostThreads, more than there are CPUs too. Call it while no job runs.
void set_thread_count(int count);

// A call with the number of a chunk, without owning what it calls.
class ChunkCall {
 public:
  template <class Body>
  explicit ChunkCall(const Body& body)
      : body_(&body), call_([](const void* self, int64_t chunk) { (*static_cast<const Body*>(self))(chunk); }) {}
  void operator()(int64_t chunk) const { call_(body_, chunk); }

 private:
  const void* body_;
  void (*call_)(const void*, int64_t);
};

// Calls body(chunk) once for each chunk in [0, count), on any thread and in any order. Rethrows the first exception of
// a body after all threads have left; chunks that have not begun by then are left out.
void run_chunks(int64_t count, ChunkCall body);

// How many chunks to cut work of so many flops into: some small ones where there is little, so that a second thread has
// a share of 10 us or more, and larger ones where there is much.
inline int64_t chunks_for_flops(double flops, double large_chunk) {
  constexpr double kSmall = 1.5e5, kFew = 8, kMost = 64;
  return int64_t(std::clamp(std::max(flops / large_chunk, std::min(flops / kSmall, kFew)), 1.0, kMost));
}

// Calls task(index) for every index below `count`, each as a chunk. For tasks of many microseconds.
template <class Task>
void parallel_tasks(int64_t count, const Task& task) {
  run_chunks(count, ChunkCall(task));
}

// Calls body(begin, end) on consecutive parts of [0, tasks). `elements` is the work in all of them, in copies of one
// f32.
template <class Body>
void parallel_for(int64_t tasks, int64_t elements, const Body& body) {
  if (tasks <= 0) return;
  constexpr int64_t kChunkElements = kParallelElements / 2, kMostChunks = 64;
  if (tasks == 1 || elements < kParallelElements) return body(int64_t{0}, tasks);
  // A power of two, which two and four threads share evenly.
  const int64_t wanted = int64_t(std::bit_ceil(uint64_t(elements / kChunkElements)));
  const int64_t chunks = std::min({tasks, wanted, kMostChunks});
  parallel_tasks(chunks, [&](int64_t chunk) { body(tasks * chunk / chunks, tasks * (chunk + 1) / chunks); });
}

// The same by calling task(index) for each.
template <class Task>
void parallel_each(int64_t tasks, int64_t elements, const Task& task) {
  parallel_for(tasks, elements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(i);
  });
}

}  // namespace wick
