// The pool of threads: what it runs, what it does not wait for, and that the bits of results do not depend on it.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <latch>
#include <thread>
#include <vector>

#include "backend/probe.h"
#include "wick/backend/cpu/parallel.h"

namespace wick {
namespace {

using namespace probe;

// Those of this process: libgomp's too, which oneDNN would start and keep.
int64_t threads_now() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

class Threads : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_cpu()) GTEST_SKIP() << "of the CPU";
    set_thread_count(3);
    before_ = threads_now();
  }
  void TearDown() override { set_thread_count(threads_); }
  int64_t started_since() const { return threads_now() - before_; }
  static void expect_every_task_done_once() {
    std::vector<std::atomic<int>> done(1000);
    parallel_tasks(int64_t(done.size()), [&](int64_t task) { ++done[size_t(task)]; });
    parallel_for(int64_t(done.size()), kParallelElements * 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++done[size_t(i)];
    });
    for (const std::atomic<int>& count : done) EXPECT_EQ(count, 2);
  }

 private:
  int threads_ = thread_count();
  int64_t before_ = 0;
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

TEST_F(Threads, WorkThatIsTooLittleIsNotCut) {
  parallel_for(7, kParallelElements - 1, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 7);
  });
}

TEST_F(Threads, WhatABodyThrowsArrives) {
  for (int i = 0; i < 50; ++i) {
    EXPECT_THROW(parallel_tasks(100, [](int64_t task) { check(task != 71, "a task's"); }), Error);
    EXPECT_THROW(parallel_tasks(3, [](int64_t) { fail("each task's"); }), Error);
    EXPECT_THROW(parallel_tasks(1, [](int64_t) { fail("the only task's"); }), Error);
  }
  expect_every_task_done_once();
}

TEST_F(Threads, EveryTaskIsDoneOnce) { expect_every_task_done_once(); }

TEST_F(Threads, TheCallerWaitsForNoThreadThatHasNotStarted) {
  // Both threads of the pool are held by another caller's job; this one's job must end without them.
  std::latch held(3), release(1);
  std::thread other([&] {
    parallel_tasks(3, [&](int64_t) {
      held.count_down();
      release.wait();
    });
  });
  held.wait();
  expect_every_task_done_once();
  release.count_down();
  other.join();
}

TEST_F(Threads, AThreadWithoutACoreDelaysNoChunks) {
  // One thread of the pool stays in its chunk until all other chunks have been done by the others.
  std::atomic<int> done{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  parallel_tasks(64, [&](int64_t) {
    static thread_local bool slow = false;
    if (done++ == 0) slow = true;
    while (slow && done < 64 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    slow = false;
  });
  EXPECT_EQ(done, 64);
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
}

TEST_F(Threads, ManyCallersShareThePool) {
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int c = 0; c < 12; ++c)  // more than there are jobs
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) parallel_tasks(20, [&](int64_t i) { sum += i; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 12 * 200 * 190);
}

TEST_F(Threads, AJobWithinAChunkRunsThere) {
  parallel_tasks(8, [&](int64_t) {
    const auto self = std::this_thread::get_id();
    parallel_tasks(8, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
  });
}

// What an operation writes with one thread and with three is the same to the bit.
void expect_same_on_any_number(const char* what, const std::function<std::vector<Tensor>()>& run) {
  const int before = thread_count();
  set_thread_count(1);
  const std::vector<Tensor> alone = run();
  for (const int threads : {2, 3, 8}) {
    set_thread_count(threads);
    const std::vector<Tensor> shared = run();
    for (size_t i = 0; i < alone.size(); ++i) expect_same_bits(alone[i], shared[i], what);
  }
  set_thread_count(before);
}

TEST_F(Threads, ProductsHaveTheSameBitsOnAnyNumber) {
  struct Sizes {
    int64_t m, k, n;
  };
  for (const Sizes s :
       {Sizes{1, 300, 5000}, {3, 700, 900}, {77, 33, 129}, {1000, 4, 320}, {513, 511, 257}, {16, 9000, 16}}) {
    const Tensor x = random({s.m, s.k}), w = random({s.n, s.k}), bias = random({s.n}), dy = random({s.m, s.n});
    expect_same_on_any_number("linear", [&] {
      const Tensor y = poisoned({s.m, s.n});
      backend().linear(y, x, w, bias);
      return std::vector{y};
    });
    expect_same_on_any_number("matmul", [&] {
      const Tensor y = poisoned({s.m, s.k});
      backend().matmul(y, dy, w, 1, 0);
      return std::vector{y};
    });
  }
}

TEST_F(Threads, ConvolutionsHaveTheSameBitsOnAnyNumber) {
  for (const int64_t images : {1, 2, 5})
    for (const int stride : {1, 2}) {
      const Conv2d conv{stride, stride == 1, stride == 1, 1, 1};
      const int64_t height = 34, width = 22, in = 24, out = 40;
      const int64_t high = (height + conv.top + 1 - 3) / stride + 1, wide = (width + conv.left + 1 - 3) / stride + 1;
      const Tensor x = random({images, height, width, in}), w = random({out, 3, 3, in}), bias = random({out});
      const Tensor dy = random({images, high, wide, out});
      expect_same_on_any_number("conv2d", [&] {
        const Tensor y = poisoned({images, high, wide, out}), dx = poisoned(x.shape()), dw = poisoned(w.shape()),
                     dbias = poisoned({out});
        backend().conv2d(y, x, w, bias, {}, conv);
        backend().conv2d_backward_input(dx, dy, w, conv);
        backend().conv2d_backward_weight(dw, dbias, dy, x, conv);
        return std::vector{y, dx, dw, dbias};
      });
    }
}

TEST_F(Threads, AttentionHasTheSameBitsOnAnyNumber) {
  for (const int64_t heads : {1, 2, 9})
    for (const int64_t tokens : {5, 100, 300}) {
      const Tensor q = random({1, tokens, heads, 40}), dy = random({1, tokens, heads, 40});
      expect_same_on_any_number("attention", [&] {
        const Tensor y = poisoned(q.shape()), lse = poisoned({1, heads, tokens});
        const Tensor dq = poisoned(q.shape()), dk = poisoned(q.shape()), dv = poisoned(q.shape());
        const AttentionArgs args{.y = y, .lse = lse, .q = q, .k = q, .v = q, .scale = 0.125f};
        backend().attention(args);
        backend().attention_backward(args, {.dq = dq, .dk = dk, .dv = dv, .dy = dy});
        return std::vector{y, lse, dq, dk, dv};
      });
    }
}

TEST_F(Threads, LorasHaveTheSameBitsOnAnyNumber) {
  for (const int64_t rank : {1, 4, 32})
    for (const int64_t tokens : {3, 250}) {
      const int64_t width = 200;
      const Tensor x = random({tokens, width}), dy = random({tokens, width}), w = random({width, width});
      const Tensor down = random({rank, width}), up = random({width, rank});
      const LoraFactors lora{down, {{up, 0, 0, 1.0f}}};
      expect_same_on_any_number("LoRA", [&] {
        const Tensor y = poisoned({tokens, width}), s = poisoned({tokens, rank}), dx = poisoned({tokens, width}),
                     ddown = poisoned({rank, width}), dup = poisoned({width, rank});
        backend().lora_linear({.y = y, .s = s, .x = x, .w = w, .lora = lora});
        backend().lora_linear_backward({.s = s, .x = x, .w = w, .lora = lora},
                                       {.dx = dx, .ddown = ddown, .dups = {dup}, .dy = dy});
        return std::vector{y, s, dx, ddown, dup};
      });
    }
}

}  // namespace
}  // namespace wick
