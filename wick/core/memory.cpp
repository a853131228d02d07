#include "wick/core/memory.h"

#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "wick/core/cpus.h"
#include "wick/core/error.h"

namespace wick {
namespace {
thread_local Purpose current_purpose = Purpose::activations;
}

const char* name_of(Purpose purpose) {
  constexpr const char* kNames[kPurposes] = {"activations", "weights", "adapter", "optimizer", "data"};
  return kNames[size_t(purpose)];
}

MemoryScope::MemoryScope(Purpose purpose) : outer_(current_purpose) { current_purpose = purpose; }
MemoryScope::~MemoryScope() { current_purpose = outer_; }
Purpose MemoryScope::current() { return current_purpose; }

std::string readable_bytes(size_t bytes) {
  const char* unit = "B";
  double value = double(bytes);
  for (const char* larger : {"KiB", "MiB", "GiB"})
    if (value >= 1000) {
      value /= 1024;
      unit = larger;
    }
  return fmt::format("{:.{}f} {}", value, *unit == 'B' ? 0 : 1, unit);
}

std::string Memory::holdings() const {
  std::string text;
  for (const Purpose p : {Purpose::weights, Purpose::adapter, Purpose::optimizer, Purpose::activations, Purpose::data})
    if (held(p) > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(p), readable_bytes(held(p)));
  return text.empty() ? "nothing" : text;
}

namespace {

// In pieces, by several threads: one alone copies from the page cache at a fraction of the memory's rate.
void fill_host(const std::vector<Memory::Filling>& fillings) {
  constexpr size_t kPiece = size_t{8} << 20, kMostThreads = 8;
  struct Piece {
    const Memory::Filling* of;
    size_t begin;
  };
  std::vector<Piece> pieces;
  for (const Memory::Filling& filling : fillings)
    for (size_t begin = 0; begin < filling.bytes; begin += kPiece) pieces.push_back({&filling, begin});
  std::atomic<size_t> next{0};
  const auto read = [&] {
    for (size_t i; (i = next.fetch_add(1)) < pieces.size();) {
      const auto& [filling, begin] = pieces[i];
      filling->source(static_cast<char*>(filling->to) + begin, begin, std::min(kPiece, filling->bytes - begin));
    }
  };
  std::vector<std::future<void>> others;
  const size_t threads = pieces.size() < 2 ? 1 : std::min({pieces.size(), kMostThreads, size_t(usable_cpus())});
  for (size_t i = 1; i < threads; ++i) others.push_back(std::async(std::launch::async, read));
  read();
  for (std::future<void>& other : others) other.get();
}

}  // namespace

void Memory::fill(const std::vector<Filling>& fillings) {
  if (on_host()) return fill_host(fillings);
  for (const auto& [to, bytes, source] : fillings) {
    std::vector<char> all(bytes);
    source(all.data(), 0, bytes);
    write(to, all.data(), bytes);
  }
}

namespace {

// One that has ended when begin() returns.
class Copying final : public Transfer {
 public:
  Copying(Memory& memory, Direction direction) : memory_(memory), direction_(direction) {}
  void begin(void* to, const void* from, size_t bytes) override {
    direction_ == Direction::to_device ? memory_.write(to, from, bytes) : memory_.read(to, from, bytes);
  }
  void await() override {}

 private:
  Memory& memory_;
  Direction direction_;
};

}  // namespace

Memory& Memory::host_side() { return host_memory(); }
std::unique_ptr<Transfer> Memory::make_transfer(Direction direction) {
  return std::make_unique<Copying>(*this, direction);
}

Memory& Memory::staging_side() { return host_memory(); }
std::unique_ptr<Transfer> Memory::make_staged_transfer(size_t) { return make_transfer(Direction::to_device); }

void Memory::rest() {
  for (Mover* mover : movers_) mover->rest();
}

void Memory::count(size_t bytes) {
  const size_t now = in_use_ += bytes;
  for (size_t seen = peak_; seen < now && !peak_.compare_exchange_weak(seen, now);) {
  }
}

namespace {

class Copied final : public Readback {
 public:
  explicit Copied(std::vector<char> bytes) : bytes_(std::move(bytes)) {}
  const void* data() override { return bytes_.data(); }

 private:
  std::vector<char> bytes_;
};

constexpr size_t kHugePage = size_t{2} << 20;

class HostMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override {
    const bool is_large = bytes >= kLarge && MemoryScope::current() == Purpose::weights;
    void* data = is_large ? map(bytes) : std::aligned_alloc(64, rounded_up(std::max<size_t>(bytes, 1), 64));
    if (data == nullptr)
      throw OutOfMemory(
          fmt::format("out of memory: the CPU could not give {}; in use: {}", readable_bytes(bytes), holdings()));
    count(bytes);
    return data;
  }
  void release(void* data, size_t bytes) noexcept override {
    if (bytes < kLarge || !unmap(data, bytes)) std::free(data);
    uncount(bytes);
  }
  bool on_host() const override { return true; }
  // Otherwise the process keeps the holes that loading left between the weights: hundreds of MiB for a large model.
  void trim() override {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }
  void write(void* to, const void* host, size_t bytes) override { std::memcpy(to, host, bytes); }
  void read(void* host, const void* from, size_t bytes) override { std::memcpy(host, from, bytes); }
  std::unique_ptr<Readback> read_later(const void* from, size_t bytes) override {
    const char* begin = static_cast<const char*>(from);
    return std::make_unique<Copied>(std::vector<char>(begin, begin + bytes));
  }

 private:
  static constexpr size_t kLarge = 2 * kHugePage;

  static size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

  // Large weights have pages of their own, which leave no holes among other tensors: huge pages where the system has
  // them, which saves address translations when every token reads all weights.
  void* map(size_t bytes) {
    const size_t all = rounded_up(bytes, kHugePage) + kHugePage;
    void* const begin = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) return nullptr;
    const size_t before = (kHugePage - reinterpret_cast<size_t>(begin) % kHugePage) % kHugePage;
    char* const data = static_cast<char*>(begin) + before;
    if (before > 0) ::munmap(begin, before);
    ::munmap(data + all - kHugePage, kHugePage - before);
    ::madvise(data, bytes, MADV_HUGEPAGE);
    const std::lock_guard lock(mutex_);
    mapped_.insert(data);
    return data;
  }

  bool unmap(void* data, size_t bytes) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (mapped_.erase(data) == 0) return false;
    }
    ::munmap(data, rounded_up(bytes, kHugePage));
    return true;
  }

  std::mutex mutex_;
  std::unordered_set<void*> mapped_;  // addresses that map() returned
};

}  // namespace

Memory& host_memory() {
  static HostMemory* memory = new HostMemory;  // outlives every static tensor
  return *memory;
}

}  // namespace wick
