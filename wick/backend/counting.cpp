#include "wick/backend/counting.h"

#include "wick/core/error.h"

namespace wick {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Kernels of the CPU keep scratch of their own, up to 128 MiB a thread but little in practice.
constexpr DeviceKind kCpu{.name = "cpu",
                          .computes_in_f32 = true,
                          .granule = 1,
                          .workspace = 0,
                          .context = 256 * kMiB,
                          .context_of = "scratch of the kernels"};

// Scratch comes from the pool, which hands out multiples of 512 bytes: the plans of cuDNN's convolutions and attention
// and dense copies of strided operands. Past the pool there are cuBLASLt's workspace (32 MiB), the context and the
// kernels of the libraries.
constexpr DeviceKind kCuda{.name = "cuda",
                           .computes_in_f32 = false,
                           .granule = 512,
                           .workspace = 128 * kMiB,
                           .context = 544 * kMiB,
                           .context_of = "CUDA's context, cuBLASLt's workspace"};

[[noreturn]] void fail_reading() { fail("memory that only counts was read: it has no values to give"); }

struct Nothing final : Readback {
  const void* data() override { fail_reading(); }
};

}  // namespace

const DeviceKind& device_kind(std::string_view device) { return device.starts_with("cuda") ? kCuda : kCpu; }

void* CountingMemory::allocate(size_t bytes) {
  count(counted(bytes));
  return this;  // an address that is not null; nobody follows it
}

void CountingMemory::read(void*, const void*, size_t) { fail_reading(); }
std::unique_ptr<Readback> CountingMemory::read_later(const void*, size_t) { return std::make_unique<Nothing>(); }

}  // namespace wick
