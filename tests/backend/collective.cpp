// Several devices: their sums, and that each computes in its thread as it does alone. Of CUDA, where there are two or
// more; WICK_TEST_DEVICE=cuda as for all tests there.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <thread>

#include "backend/probe.h"
#include "wick/backend/counting.h"

namespace wick {
namespace {

using namespace probe;

int device_count() {
  static const int count = [] {
    int found = 0;
    for (const DeviceReport& device : cuda_report().devices) found += device.problem.empty();
    return found;
  }();
  return count;
}

template <class T>
std::vector<T> of_each_device() {
  return std::vector<T>(size_t(device_count()));
}

Backend& open_device(int rank) { return open_backend(fmt::format("cuda:{}", rank)); }

// Calls f(backend, rank) for each device on a thread of its own. What one throws arrives once all have ended.
void on_all(const std::function<void(Backend&, int)>& f) {
  auto errors = of_each_device<std::exception_ptr>();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < device_count(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          f(open_device(rank), rank);
        } catch (...) {
          errors[size_t(rank)] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

void on_members_of(CollectiveUse use, const std::function<void(Backend&, Collective&, int)>& f) {
  const std::string id = open_device(0).collective_id(use);
  on_all([&](Backend& backend, int rank) {
    const auto collective = backend.join_collective(id, rank, device_count(), [] {});
    f(backend, *collective, rank);
  });
}

class Devices : public testing::Test {
 protected:
  void SetUp() override {
    if (on_cpu() || is_composed()) GTEST_SKIP() << "of CUDA";
    if (device_count() < 2) GTEST_SKIP() << "of two devices or more";
  }
  void TearDown() override {
    if (!on_cpu()) open_backend(std::string(test::backend().name()));  // this thread's device again
  }
};

// Threads sum by copy engines, straight where the devices reach each other's memory, or through the host's. Processes
// sum by NCCL.
class Collectives : public Devices, public testing::WithParamInterface<CollectiveUse> {
 protected:
  void on_members(const std::function<void(Backend&, Collective&, int)>& f) { on_members_of(GetParam(), f); }
};

// A part of a poisoned tensor, on the host and then on a device: what lies around it must not change.
struct Guarded {
  static constexpr int64_t kBefore = 1, kAfter = 5;  // so that the part is aligned to an element alone
  Tensor all;
  Shape shape;

  explicit Guarded(const Tensor& values) : all(poisoned({kBefore + values.numel() + kAfter}, {}, values.dtype())) {
    shape = values.shape();
    std::memcpy(bytes() + kBefore * size(), values.data<char>(), size_t(values.numel()) * size());
  }
  Guarded(const Guarded& other, Memory& memory) : all(other.all.to(memory)), shape(other.shape) {}
  Tensor part() const { return all.window(shape, contiguous_strides(shape), kBefore); }
  void expect_guarded() const {
    const Tensor host = all.to(host_memory());
    const auto* const begin = host.data<unsigned char>();
    const size_t end = size_t(host.numel()) * size(), last = kAfter * size();
    for (size_t i = 0; i < end; i += i + 1 == kBefore * size() ? end - last - i : 1)
      ASSERT_EQ(begin[i], 0xff) << "byte " << i << " of " << end;
  }

 private:
  size_t size() const { return size_of(all.dtype()); }
  char* bytes() const { return all.data<char>(); }
};

struct Sums {
  std::vector<Guarded> terms;  // of each rank, on the host
  Doubles sum, magnitudes;
  Tensor in_order;  // added one after the other, by rank

  explicit Sums(int64_t numel) : sum(size_t(numel)), magnitudes(size_t(numel)), in_order(Tensor::empty({numel})) {
    cpu_backend().fill(in_order, 0);
    for (int rank = 0; rank < device_count(); ++rank) {
      const Tensor values = random({numel});
      terms.emplace_back(values);
      cpu_backend().accumulate(in_order, values, 1);
      for (size_t i = 0; i < size_t(numel); ++i) {
        sum[i] += double(values.data<float>()[i]);
        magnitudes[i] += std::abs(double(values.data<float>()[i]));
      }
    }
  }
  void expect(const Tensor& got, double times = 1) const {
    const std::vector<float> values = got.to_vector();
    ASSERT_EQ(values.size(), sum.size());
    for (size_t i = 0; i < sum.size(); ++i)
      ASSERT_NEAR(values[i], times * sum[i], times * (device_count() + times) * kEps * magnitudes[i]) << "at " << i;
  }
};

constexpr int64_t kSizes[] = {1, 3, 127, 1025, 65537, 1000003, 9000001, 20000006};

constexpr CollectiveUse kUses[] = {{.are_threads = true}, {.are_threads = true, .are_light = true}, {}};
INSTANTIATE_TEST_SUITE_P(Of, Collectives, testing::ValuesIn(kUses), [](const auto& one) {
  return !one.param.are_threads ? "processes" : one.param.are_light ? "threads_by_host" : "threads";
});

TEST(Collective, OthersHaveNone) {
  CountingBackend counting(device_kind("cuda"));
  for (Backend* const backend : {&cpu_backend(), static_cast<Backend*>(&counting)}) {
    for (const CollectiveUse& use : kUses) EXPECT_EQ(backend->collective_id(use), "");
    EXPECT_EQ(backend->join_collective("", 0, 1, [] {}), nullptr);
  }
}

TEST_P(Collectives, SumsAreTheSameForAll) {
  std::vector<Sums> sums;
  for (const int64_t numel : kSizes) sums.emplace_back(numel);
  auto got = of_each_device<std::vector<Tensor>>();
  on_members([&](Backend& backend, Collective& collective, int rank) {
    for (const Sums& s : sums) {
      const Guarded x(s.terms[size_t(rank)], backend.memory());
      collective.sum(x.part());
      collective.join();
      x.expect_guarded();
      s.expect(x.part());
      got[size_t(rank)].push_back(x.part().to(host_memory()));
    }
  });
  for (const std::vector<Tensor>& of_rank : got)
    for (size_t i = 0; i < sums.size(); ++i)
      expect_same_bits(of_rank[i], GetParam().are_threads ? sums[i].in_order : got[0][i], "sum");
}

TEST_P(Collectives, OneGivesToAll) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8})
    for (int from = 0; from < device_count(); ++from)
      on_members([&](Backend& backend, Collective& collective, int rank) {
        for (const int64_t numel : kSizes) {
          const Tensor values = Tensor::empty({numel}, dtype);
          const auto fill = [&](int of) {
            for (int64_t i = 0; i < numel * int64_t(size_of(dtype)); ++i)
              values.data<unsigned char>()[i] = static_cast<unsigned char>(i * (7 + 2 * of) % 61);
          };
          fill(rank);
          const Guarded x(Guarded(values), backend.memory());
          collective.broadcast(x.part(), from);
          collective.join();
          x.expect_guarded();
          fill(from);
          const Tensor got = x.part().to(host_memory());
          ASSERT_EQ(std::memcmp(got.data<char>(), values.data<char>(), size_t(numel) * size_of(dtype)), 0)
              << name_of(dtype) << " from " << from;
        }
      });
}

// Several are under way at once, and products run beside them.
TEST_P(Collectives, AreReplayed) {
  constexpr int64_t kSide = 192, kReplays = 5;
  std::vector<Sums> sums;
  for (const int64_t numel : kSizes) sums.emplace_back(numel);
  const Tensor a = random({kSide, kSide}), b = random({kSide, kSide});
  on_members([&](Backend& backend, Collective& collective, int rank) {
    Memory& memory = backend.memory();
    std::vector<Guarded> terms, totals;
    std::vector<Tensor> moved;
    for (const Sums& s : sums) {
      terms.emplace_back(s.terms[size_t(rank)], memory);
      totals.emplace_back(s.terms[size_t(rank)], memory);
      moved.push_back(Tensor::empty(terms.back().shape, DType::f32, memory));
    }
    const Tensor x = a.to(memory), w = b.to(memory);
    const Tensor product = Tensor::empty(a.shape(), DType::f32, memory),
                 again = Tensor::empty(a.shape(), DType::f32, memory);
    const auto work = [&] {
      for (size_t i = 0; i < sums.size(); ++i) {
        backend.copy(moved[i], terms[i].part());
        collective.sum(moved[i]);
        backend.linear(i % 2 ? again : product, x, w, {});
      }
      collective.join();
      for (size_t i = 0; i < sums.size(); ++i) backend.accumulate(totals[i].part(), moved[i], 1);
    };
    work();
    const Tensor want = product.to(host_memory());
    for (const Guarded& total : totals) backend.fill(total.part(), 0);
    memory.enter_arena();
    const auto replay = backend.capture(work);
    memory.leave_arena();
    for (int i = 0; i < kReplays; ++i) replay->run();
    expect_same_bits(product.to(host_memory()), want, "product beside a sum");
    expect_same_bits(again.to(host_memory()), want, "product beside a sum");
    for (size_t i = 0; i < sums.size(); ++i) {
      totals[i].expect_guarded();
      sums[i].expect(totals[i].part(), kReplays);
    }
  });
}

// The others never call sum().
TEST_P(Collectives, AbortEndsWhatWaits) {
  using namespace std::chrono_literals;
  auto members = of_each_device<std::atomic<Collective*>>();
  std::atomic<bool> aborted{false};
  on_members([&](Backend& backend, Collective& collective, int rank) {
    members[size_t(rank)] = &collective;
    const Tensor x = Tensor::empty({1 << 20}, DType::f32, backend.memory());
    if (rank == 0) {
      std::promise<void> ended;
      const std::jthread watch([&] {
        for (const auto& member : members)
          while (!member) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(500ms);
        for (const auto& member : members) member.load()->abort();
        aborted = true;
        if (ended.get_future().wait_for(10s) == std::future_status::ready) return;
        std::fputs("abort() did not end a sum within 10 s\n", stderr);
        std::_Exit(1);  // nothing ends the threads that hang
      });
      try {
        collective.sum(x);
        collective.join();
        (void)x.to_vector();
      } catch (const Error&) {  // where it is the host that waited
      }
      EXPECT_TRUE(members.back());
      ended.set_value();
    }
    while (!aborted) std::this_thread::sleep_for(1ms);
    EXPECT_THROW(collective.sum(x), Error);
    EXPECT_THROW(collective.join(), Error);
    backend.fill(x, 3);  // the device goes on
    EXPECT_EQ(x.to_vector().back(), 3);
  });
}

// A captured sum waits on the device. The others never replay theirs.
TEST_P(Collectives, AbortEndsAReplay) {
  using namespace std::chrono_literals;
  if (!GetParam().are_threads) GTEST_SKIP() << "NCCL connects before";
  std::atomic<bool> ended{false};
  on_members([&](Backend& backend, Collective& collective, int rank) {
    const Tensor x = Tensor::empty({1 << 20}, DType::f32, backend.memory());
    backend.fill(x, 1);
    backend.memory().enter_arena();
    const auto replay = backend.capture([&] { collective.sum(x), collective.join(); });
    backend.memory().leave_arena();
    if (rank == 0) {
      const std::jthread watch([&] {
        std::this_thread::sleep_for(200ms);
        collective.abort();
      });
      EXPECT_THROW(replay->run(), Error);
      (void)x.to_vector();
      ended = true;
    }
    while (!ended) std::this_thread::sleep_for(1ms);
    collective.abort();
    EXPECT_THROW(collective.sum(x), Error);
    backend.fill(x, 3);
    EXPECT_EQ(x.to_vector().back(), 3);
  });
}

// The results of some calls that load libraries, choose kernels and are recorded.
std::vector<Tensor> computed(Backend& backend) {
  Memory& memory = backend.memory();
  std::vector<Tensor> results;
  const auto make = [&](const Shape& shape, DType dtype, uint64_t seed) {
    const Tensor normal = Tensor::empty(shape, DType::f32, memory), t = Tensor::empty(shape, dtype, memory);
    backend.fill_normal(normal, seed, uint32_t(Stream::test), 0);
    backend.copy(t, normal);
    return t;
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = make({300, 256}, dtype, 1), w = make({192, 256}, dtype, 2), y = make({300, 192}, dtype, 3);
    const Tensor q = make({2, 300, 4, 64}, dtype, 4), heads = make({2, 300, 4, 64}, dtype, 5),
                 lse = make({2, 4, 300}, DType::f32, 6);
    const Shape pixels{1, 16, 16, 64};
    const Tensor image = make(pixels, dtype, 7), kernel = make({64, 3, 3, 64}, dtype, 8),
                 convolved = make(pixels, dtype, 9), normed = make(pixels, dtype, 10);
    const Tensor mean = make({1, 8}, DType::f32, 11), rstd = make({1, 8}, DType::f32, 12),
                 weight = make({64}, DType::f32, 13), bias = make({64}, DType::f32, 14);
    const auto work = [&] {
      backend.linear(y, x, w, {});
      backend.attention({.y = heads, .lse = lse, .q = q, .k = q, .v = q, .scale = 0.125f});
      backend.conv2d(convolved, image, kernel, {}, {}, {.top = 1, .left = 1, .bottom = 1, .right = 1});
      backend.group_norm({.y = normed,
                          .mean = mean,
                          .rstd = rstd,
                          .x = convolved,
                          .w = weight,
                          .b = bias,
                          .groups = 8,
                          .eps = 1e-5f,
                          .silu = true});
    };
    work();
    memory.enter_arena();
    const auto replay = backend.capture(work);
    memory.leave_arena();
    replay->run();
    for (const Tensor& t : {y, heads, lse, normed}) results.push_back(t.to(host_memory()));
  }
  return results;
}

TEST_F(Devices, ComputeAtOnce) {
  auto alone = of_each_device<std::vector<Tensor>>();
  on_all([&](Backend& backend, int rank) {
    for (int i = 0; i < rounds(10); ++i) alone[size_t(rank)] = computed(backend);
  });
  for (int rank = 0; rank < device_count(); ++rank) {
    const std::vector<Tensor> want = computed(open_device(rank));
    for (size_t i = 0; i < want.size(); ++i) expect_same_bits(alone[size_t(rank)][i], want[i], "beside others");
  }
}

}  // namespace
}  // namespace wick
