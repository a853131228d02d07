// Threads are started once and not again: libgomp starts some whenever a parallel region opens within one of a single
// thread, and ends them with it.
#if defined(__SANITIZE_ADDRESS__)
#define WICK_COUNTS_THREADS 0
#elif defined(__has_feature)
#define WICK_COUNTS_THREADS !__has_feature(address_sanitizer)
#else
#define WICK_COUNTS_THREADS 1
#endif

#if WICK_COUNTS_THREADS  // the sanitizer has a pthread_create of its own
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>

#include <atomic>

#include "backend/probe.h"
#include "wick/backend/cpu/parallel.h"

namespace {
std::atomic<int> started{0};
}

// Replaces the C library's, for libgomp too.
extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                             void* (*body)(void*), void* argument) noexcept {
  ++started;
  static const auto original = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return original(thread, attributes, body, argument);
}

namespace wick {
namespace {

using namespace probe;

// As many threads as the team has, whatever OMP_NUM_THREADS says for other tests.
class Threads : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_cpu()) GTEST_SKIP() << "of the CPU";
    omp_set_num_threads(2);
    with_team(true, [](const TeamMember&) {});  // starts the second
    before_ = started;
  }
  void TearDown() override { omp_set_num_threads(threads_); }
  int started_since() const { return started - before_; }

 private:
  int threads_ = (cpu_backend(), omp_get_max_threads());
  int before_ = 0;
};

TEST_F(Threads, NoneIsStartedByALoraOfAnySize) {
  for (const int64_t tokens : {1, 4, 16, 64, 256})
    for (const int64_t rank : {1, 4, 8, 16})
      for (const int64_t width : {32, 64, 320}) {
        const Tensor x = random({tokens, width}), dy = random({tokens, width}), w = random({width, width});
        const Tensor down = random({rank, width}), up = random({width, rank}), s = random({tokens, rank});
        const Tensor dx = poisoned({tokens, width}), ddown = poisoned({rank, width}), dup = poisoned({width, rank});
        const LoraFactors lora{down, {{up, 0, 0, 1.0f}}};
        backend().lora_linear({.y = poisoned({tokens, width}), .s = s, .x = x, .w = w, .lora = lora});
        backend().lora_linear_backward({.s = s, .x = x, .w = w, .lora = lora},
                                       {.dx = dx, .ddown = ddown, .dups = {dup}, .dy = dy});
        EXPECT_EQ(started_since(), 0) << tokens << " tokens of " << width << ", rank " << rank;
      }
}

TEST_F(Threads, NoneIsStartedByAttentionOfOneBlock) {
  for (const int64_t tokens : {1, 8, 77, 256}) {
    const Tensor q = random({1, tokens, 1, 64}), y = poisoned({1, tokens, 1, 64}), lse = poisoned({1, 1, tokens});
    const Tensor dq = poisoned({1, tokens, 1, 64}), dk = poisoned({1, tokens, 1, 64}),
                 dv = poisoned({1, tokens, 1, 64});
    backend().attention({.y = y, .lse = lse, .q = q, .k = q, .v = q, .scale = 0.125f});
    backend().attention_backward({.y = y, .lse = lse, .q = q, .k = q, .v = q, .scale = 0.125f},
                                 {.dq = dq, .dk = dk, .dv = dv, .dy = y});
    EXPECT_EQ(started_since(), 0) << tokens << " tokens";
  }
}

TEST_F(Threads, WorkThatIsTooLittleOpensNoRegion) {
  with_team(false, [](const TeamMember& me) {
    EXPECT_EQ(omp_get_level(), 0);
    EXPECT_EQ(me.begin(7), 0);
    EXPECT_EQ(me.end(7), 7);
  });
}

TEST_F(Threads, WhatABodyThrowsArrives) {
  EXPECT_THROW(with_team(true, [](const TeamMember& me) { check(me.thread() != 1, "the second thread's"); }), Error);
  EXPECT_THROW(parallel_tasks(100, [](int64_t task, int64_t) { check(task != 71, "a task's"); }), Error);
}

TEST_F(Threads, EveryTaskIsDoneOnce) {
  std::vector<std::atomic<int>> done(1000);
  parallel_tasks(int64_t(done.size()), [&](int64_t task, int64_t) { ++done[size_t(task)]; });
  parallel_for(int64_t(done.size()), kParallelElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++done[size_t(i)];
  });
  for (const std::atomic<int>& count : done) EXPECT_EQ(count, 2);
}

}  // namespace
}  // namespace wick
#endif
