#include "wick/train/interrupt.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace wick {
namespace {

TEST(Interrupt, IsRequestedBySignals) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const Interrupt interrupt;
    EXPECT_FALSE(interrupt.requested());
    std::raise(number);
    EXPECT_TRUE(interrupt.requested());
    std::raise(number);  // at the same moment: still alive
  }
}

TEST(Interrupt, AHangupIsHeededUnlessItWasIgnored) {
  std::signal(SIGHUP, SIG_IGN);  // as nohup does
  {
    const Interrupt interrupt;
    std::raise(SIGHUP);
    EXPECT_FALSE(interrupt.requested());
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN) << "and is left as it was";
}

TEST(Interrupt, WhatSignalsDidBeforeTheyDoAgain) {
  for (const int number : {SIGINT, SIGTERM}) {
    std::signal(number, SIG_IGN);
    {
      const Interrupt interrupt;
      std::raise(number);
      EXPECT_TRUE(interrupt.requested());
    }
    EXPECT_EQ(std::signal(number, SIG_DFL), SIG_IGN);
  }
}

TEST(Interrupt, AHangupIsNeverTheSecondSignal) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const Interrupt interrupt;
    std::raise(number);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::raise(SIGHUP);
    EXPECT_TRUE(interrupt.requested());
  }
}

TEST(InterruptDeathTest, ASecondOneLaterEndsTheProgram) {
  const auto twice = [](int number) {
    const Interrupt interrupt;
    std::raise(number);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::raise(number);
  };
  EXPECT_EXIT(twice(SIGINT), testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(twice(SIGTERM), testing::KilledBySignal(SIGTERM), "");
}

#ifdef __x86_64__
// A signal that comes while the stack pointer points elsewhere, as in generated code.
void signal_with_stack_at(std::byte* place, int number) {
  asm volatile("mov %%rsp, %%rbx; mov %[place], %%rsp; syscall; mov %%rbx, %%rsp"
               :
               : "a"(SYS_kill), "D"(getpid()), "S"(number), [place] "r"(place)
               : "rbx", "rcx", "r11", "memory");
}

TEST(Interrupt, WritesNothingWhereTheStackPointerIs) {
  std::vector<std::byte> data(size_t{64} << 10, std::byte{0x5a});
  const Interrupt interrupt;
  signal_with_stack_at(data.data() + data.size() / 2, SIGINT);
  EXPECT_TRUE(interrupt.requested());
  EXPECT_EQ(std::ranges::count(data, std::byte{0x5a}), std::ssize(data));
}
#endif

}  // namespace
}  // namespace wick
