// Copies on the host that several threads share.
#include "wick/autograd/host_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "late_device.h"
#include "wick/autograd/block_schedule.h"
#include "wick/core/error.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

constexpr size_t kThreads = 4;

void on_each_thread(const std::function<void(size_t thread)>& f) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back(f, i);
  for (std::thread& thread : threads) thread.join();
}

size_t held_on_host() { return host_memory().held(Purpose::weights); }

Tensor bytes(size_t count) {
  const MemoryScope scope(Purpose::weights);
  return Tensor::empty({int64_t(count)}, DType::u8);
}

// Two threads ask in one order, two in another.
TEST(HostCopies, AreMadeOnce) {
  constexpr size_t kNames = 20, kBytes = 1000;
  HostCopies copies(kThreads);
  std::atomic<int> made = 0;
  const size_t before = held_on_host();
  std::vector<std::vector<std::shared_ptr<const Tensor>>> all(kThreads);
  on_each_thread([&](size_t thread) {
    all[thread].resize(kNames);
    for (size_t i = 0; i < kNames; ++i) {
      const size_t name = (i + 10 * (thread / 2)) % kNames;
      all[thread][name] = copies.find_or_make(std::to_string(name), kBytes, [&] {
        ++made;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // others wait for it
        return bytes(kBytes);
      });
    }
  });
  EXPECT_EQ(made, int(kNames));
  EXPECT_EQ(held_on_host() - before, kNames * kBytes);
  for (const auto& of_thread : all) EXPECT_EQ(of_thread, all[0]);
  all.resize(1);
  EXPECT_EQ(held_on_host() - before, kNames * kBytes) << "someone has them";
  all.clear();
  EXPECT_EQ(held_on_host(), before);
  const auto again = copies.find_or_make("0", 2 * kBytes, [&] { return bytes(2 * kBytes); });
  EXPECT_EQ(held_on_host() - before, 2 * kBytes);
  EXPECT_THROW(copies.find_or_make("0", kBytes, [&] { return bytes(kBytes); }), Error) << "another model's";
}

TEST(HostCopies, AnotherThreadMakesWhatOneCouldNot) {
  for (const int failing : {1, 3, int(kThreads)}) {
    HostCopies copies(kThreads);
    std::atomic<int> begun = 0, failed = 0;
    std::vector<std::shared_ptr<const Tensor>> got(kThreads);
    on_each_thread([&](size_t thread) {
      try {
        got[thread] = copies.find_or_make("a", 8, [&] {
          const int number = begun++;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          if (number < failing) throw OutOfMemory("no room");
          return bytes(8);
        });
      } catch (const OutOfMemory&) {
        ++failed;
      }
    });
    EXPECT_EQ(begun, std::min(failing + 1, int(kThreads)));
    EXPECT_EQ(failed, failing);
    EXPECT_EQ(std::ranges::count(got, nullptr), failing);
  }
}

// A model of blocks that multiply by a weight of their own, on a device of its thread.
class Streamed {
 public:
  static constexpr size_t kBlocks = 7;
  static constexpr int64_t kWidth = 300;

  explicit Streamed(MasterPlace masters) {
    const std::vector<size_t> sizes(kBlocks, BlockStream::rounded_up(kWidth * sizeof(float)));
    const auto stream = std::make_shared<BlockStream>(device_, sizes, kBlocks, std::move(masters));
    for (size_t i = 0; i < kBlocks; ++i) {
      std::vector<float> values(kWidth);
      for (size_t j = 0; j < values.size(); ++j) values[j] = 1 + float(i) / 4 + float(j % 5) / 8;
      weights_.push_back(stream->room(i, {kWidth}, DType::f32));
      device_.write(weights_[i].view().data, values.data(), values.size() * sizeof(float));
      stream->keep(i, true);
    }
    blocks_.stream(stream);
  }

  std::vector<float> gradient() const {
    const Tensor x = Tensor::of(std::vector<float>(kWidth, 0.5f), {kWidth}).trainable();
    Tape tape;
    Tensor y = x;
    BlockSchedule::Pass run = blocks_.pass();
    for (const Tensor& w : weights_) y = run([&w](const Tensor& h) { return silu(h) * w; }, y);
    return tape.backward(sum(y))[x].to_vector();
  }

 private:
  test::LateDevice device_;
  std::vector<Tensor> weights_;
  BlockSchedule blocks_ = BlockSchedule::recomputing_all();
};

TEST(HostCopies, ThreadsThatShareThemHaveTheBitsOfThoseThatDoNot) {
  const size_t before = held_on_host();
  const Streamed alone({});
  const std::vector<float> expected = alone.gradient();
  const size_t one_copy = held_on_host() - before;
  EXPECT_EQ(one_copy, Streamed::kBlocks * BlockStream::rounded_up(Streamed::kWidth * sizeof(float)));
  for (const bool staged : {false, true}) {
    const auto copies = std::make_shared<HostCopies>(kThreads);
    const MasterPlace shared{.staged = staged, .shared = copies, .name = "a"};
    std::vector<std::unique_ptr<Streamed>> models(kThreads);
    on_each_thread([&](size_t thread) { models[thread] = std::make_unique<Streamed>(shared); });
    EXPECT_EQ(held_on_host() - before, 2 * one_copy);
    // They go at different times, and the masters stay for who is left.
    on_each_thread([&](size_t thread) {
      for (size_t i = 0; i <= thread; ++i) EXPECT_EQ(models[thread]->gradient(), expected) << thread;
      models[thread].reset();
    });
    EXPECT_EQ(held_on_host() - before, one_copy);
  }
}

TEST(HostCopies, AnOutlineSharesNone) {
  const auto copies = std::make_shared<HostCopies>(2);
  const MasterPlace shared{.shared = copies, .name = "a"};
  test::LateDevice device;
  BlockStream outline(device, {512}, 1, shared);
  outline.room(0, {1}, DType::f32);
  outline.keep(0, /*has_values=*/false);
  bool made = false;
  copies->find_or_make("block 0 of a", 512, [&] { return made = true, bytes(512); });
  EXPECT_TRUE(made);
}

}  // namespace
}  // namespace wick
