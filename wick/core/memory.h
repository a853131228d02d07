// Where tensors live: one Memory a device, which allocates and counts.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace wick {

class Backend;

struct MemoryStats {  // bytes, and requests served since the start
  size_t in_use = 0, peak = 0;
  size_t reserved = 0;  // taken from the system or the driver, in use or kept for reuse
  size_t most_reserved = 0;
  uint64_t requests = 0, hits = 0;  // hits were served from what was kept
};

// Bytes on their way to the host: data() waits for what was enqueued before the read, and for nothing after it.
class Readback {
 public:
  virtual ~Readback() = default;
  virtual const void* data() = 0;
};

// What a tensor is held for: the purpose of the MemoryScope that was alive when its memory was allocated.
enum class Purpose : uint8_t { activations, weights, adapter, optimizer, data };
inline constexpr size_t kPurposes = 5;
const char* name_of(Purpose purpose);

class MemoryScope {
 public:
  explicit MemoryScope(Purpose purpose);  // of this thread, until the scope ends
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  static Purpose current();  // activations where there is none

 private:
  Purpose outer_;
};

std::string readable_bytes(size_t bytes);  // "18.4 GiB", "12.0 MiB", "640 B"

class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* allocate(size_t bytes) = 0;  // at least 64-byte aligned; throws OutOfMemory when there is no room
  virtual void release(void* data, size_t bytes) noexcept = 0;
  virtual bool on_host() const = 0;  // the CPU may read and write it

  // Bytes to and from the CPU's memory. write() may return before they have arrived, but is done with `host`; read()
  // waits for all work that was enqueued before it.
  virtual void write(void* to, const void* host, size_t bytes) = 0;
  virtual void read(void* host, const void* from, size_t bytes) = 0;
  // Bytes of a file: source(host, begin, n) reads the n of them from `begin` on, and may be called from several threads
  // at once. All has been read when fill() returns. Many tensors at once keep the readers busy from one to the next.
  using Source = std::function<void(void* host, size_t begin, size_t bytes)>;
  struct Filling {
    void* to;
    size_t bytes;
    Source source;
  };
  virtual void fill(const std::vector<Filling>& fillings);

  // A read that is enqueued now and waited for later.
  virtual std::unique_ptr<Readback> read_later(const void* from, size_t bytes) = 0;

  virtual MemoryStats stats() const { return {in_use(), peak(), in_use(), peak(), 0, 0}; }
  virtual void trim() {}  // gives back what is kept but not used
  // Between the two, what is allocated comes from a part of its own that nothing outside shares: a captured step holds
  // addresses of memory that is free between its replays. All captured steps share that one part.
  virtual void enter_arena() {}
  virtual void leave_arena() {}

  size_t in_use() const { return in_use_; }
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = in_use_.load(); }

  // Bytes of the tensors held for a purpose. What is in use beyond them all is scratch of kernels.
  size_t held(Purpose purpose) const { return held_[size_t(purpose)]; }
  std::string holdings() const;  // "weights 6.5 GiB, activations 3.2 GiB", for errors
  void hold(Purpose purpose, size_t bytes) { held_[size_t(purpose)] += bytes; }  // by Tensor alone
  void let_go(Purpose purpose, size_t bytes) noexcept { held_[size_t(purpose)] -= bytes; }

  Backend* backend = nullptr;  // computes on this memory; set when the backend is created

 protected:
  void count(size_t bytes);
  void uncount(size_t bytes) noexcept { in_use_ -= bytes; }

 private:
  std::atomic<size_t> in_use_{0}, peak_{0};
  std::array<std::atomic<size_t>, kPurposes> held_{};
};

// What is allocated while it lives comes from the arena.
class Arena {
 public:
  explicit Arena(Memory& memory) : memory_(memory) { memory_.enter_arena(); }
  ~Arena() { memory_.leave_arena(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

 private:
  Memory& memory_;
};

Memory& host_memory();

}  // namespace wick
