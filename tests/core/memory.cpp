// What Memory counts, and for which purpose.
#include "wick/core/memory.h"

#include <gtest/gtest.h>

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

TEST(Memory, BytesAreReadable) {
  EXPECT_EQ(readable_bytes(0), "0 B");
  EXPECT_EQ(readable_bytes(640), "640 B");
  EXPECT_EQ(readable_bytes(12 << 20), "12.0 MiB");
  EXPECT_EQ(readable_bytes(size_t{1500} << 30), "1500.0 GiB");
}

}  // namespace
}  // namespace wick
