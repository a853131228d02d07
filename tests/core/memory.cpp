// The counts of Memory, and their purposes.
#include "wick/core/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "wick/core/error.h"
#include "wick/core/tensor.h"

namespace wick {
namespace {

TEST(Memory, CountsWhatTensorsAreHeldFor) {
  Memory& memory = host_memory();
  const size_t weights = memory.held(Purpose::weights), activations = memory.held(Purpose::activations);
  {
    Tensor kept;
    {
      const MemoryScope outer(Purpose::weights);
      kept = Tensor::empty({100});
      const MemoryScope inner(Purpose::activations);
      const Tensor gone = Tensor::empty({50});
      EXPECT_EQ(memory.held(Purpose::activations), activations + 200);
    }
    const Tensor window = kept.window({2}, {1});
    EXPECT_EQ(MemoryScope::current(), Purpose::activations);
    EXPECT_EQ(memory.held(Purpose::weights), weights + 400);
    EXPECT_EQ(memory.held(Purpose::activations), activations);
    EXPECT_NE(memory.holdings().find("weights"), std::string::npos);
  }
  EXPECT_EQ(memory.held(Purpose::weights), weights);
}

TEST(Memory, AnImpossibleRequestSaysWhoHoldsWhat) {
  const Tensor some = Tensor::empty({1000});
  try {
    Tensor::empty({int64_t{1} << 58});
    FAIL() << "there is no such memory";
  } catch (const OutOfMemory& e) {
    EXPECT_NE(std::string(e.what()).find("activations 3.9 KiB"), std::string::npos) << e.what();
  }
}

// Large weights are uncounted under any current purpose.
TEST(Memory, LargeWeightsComeAndGo) {
  Memory& memory = host_memory();
  const size_t before = memory.in_use();
  for (const int64_t bytes : {(4 << 20) - 1, 4 << 20, (5 << 20) + 1}) {
    Tensor weights, others;
    {
      const MemoryScope scope(Purpose::weights);
      weights = Tensor::empty({bytes}, DType::u8);
    }
    others = Tensor::empty({bytes}, DType::u8);
    for (const Tensor& tensor : {weights, others}) {
      std::memset(tensor.data<uint8_t>(), 1, size_t(bytes));
      EXPECT_EQ(reinterpret_cast<size_t>(tensor.data<uint8_t>()) % 64, 0u);
    }
    if (bytes >= 4 << 20) {
      EXPECT_EQ(reinterpret_cast<size_t>(weights.data<uint8_t>()) % (2 << 20), 0u);
    }
    const MemoryScope scope(Purpose::weights);
    others = {};
    EXPECT_EQ(memory.in_use(), before + size_t(bytes));
  }
  memory.trim();
  EXPECT_EQ(memory.in_use(), before);
}

// Several threads read the pieces of a long filling; the first error of any of them arrives.
TEST(Memory, LongFillingsAreReadInPieces) {
  constexpr size_t kBytes = (size_t{20} << 20) + 3;
  std::vector<unsigned char> all(kBytes, 255), few(5, 255);
  const auto source = [](void* to, size_t begin, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
      static_cast<unsigned char*>(to)[i] = static_cast<unsigned char>((begin + i) % 251);
  };
  host_memory().fill({{all.data(), all.size(), source}, {few.data(), few.size(), source}, {nullptr, 0, source}});
  for (const auto& bytes : {all, few})
    for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], i % 251) << i;
  const auto cut = [&](void* to, size_t begin, size_t bytes) {
    check(begin == 0, "the file is cut");
    source(to, begin, bytes);
  };
  EXPECT_THROW(host_memory().fill({{all.data(), all.size(), cut}}), Error);
}

TEST(Memory, BytesAreReadable) {
  EXPECT_EQ(readable_bytes(0), "0 B");
  EXPECT_EQ(readable_bytes(640), "640 B");
  EXPECT_EQ(readable_bytes(12 << 20), "12.0 MiB");
  EXPECT_EQ(readable_bytes(size_t{1500} << 30), "1500.0 GiB");
}

}  // namespace
}  // namespace wick
