// The memory in which tensors live: one Memory per device, which allocates and counts.
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
  uint64_t requests = 0, hits = 0;  // hits were served from reserved memory
};

// A read to the host that is under way: data() waits for work enqueued before the read, and for none after it.
class Readback {
 public:
  virtual ~Readback() = default;
  virtual const void* data() = 0;
};

enum class Direction { to_device, to_host };
// A copy between host memory and a device's, beside its computation.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Begins behind all work enqueued so far, which may use what lies there.
  virtual void begin(void* to, const void* from, size_t bytes) = 0;
  virtual void await() = 0;  // work enqueued from now on finds the bytes, and may overwrite those copied from
};

// Moves data of a device's memory from use to use. It is brought to rest where a step is recorded, before and behind
// it, and before each replay: so every step begins and ends with the same data in the same places.
class Mover {
 public:
  virtual ~Mover() = default;
  virtual void rest() = 0;
};

// The purpose for which a tensor is held: that of the MemoryScope alive when its memory was allocated.
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

  // Copies to and from the CPU's memory. write() may return before the bytes have arrived, but no longer needs `host`;
  // read() waits for all work that was enqueued before it.
  virtual void write(void* to, const void* host, size_t bytes) = 0;
  virtual void read(void* host, const void* from, size_t bytes) = 0;
  // Reads files into memory: source(host, begin, n) reads n bytes from `begin` on and may be called by several threads
  // at once. fill() returns when all is read. Many tensors in one call keep the threads busy between tensors.
  using Source = std::function<void(void* host, size_t begin, size_t bytes)>;
  struct Filling {
    void* to;
    size_t bytes;
    Source source;
  };
  virtual void fill(const std::vector<Filling>& fillings);

  // A read that is enqueued now and awaited later.
  virtual std::unique_ptr<Readback> read_later(const void* from, size_t bytes) = 0;

  // Host memory for transfers: page-locked where that is faster.
  virtual Memory& host_side();
  virtual std::unique_ptr<Transfer> make_transfer(Direction direction);
  // Ordinary host memory, where there is more than may be page-locked; and a transfer to the device from there, by way
  // of page-locked memory of its own for `most` bytes.
  virtual Memory& staging_side();
  virtual std::unique_ptr<Transfer> make_staged_transfer(size_t most);
  void add_mover(Mover& mover) { movers_.push_back(&mover); }
  void remove_mover(Mover& mover) { std::erase(movers_, &mover); }
  void rest();  // of all its movers

  virtual MemoryStats stats() const { return {in_use(), peak(), in_use(), peak(), 0, 0}; }
  virtual void trim() {}  // gives back reserved memory that is not in use
  // Between these calls, allocations come from the arena, which nothing outside shares: a captured step holds addresses
  // of memory that is free between its replays. All captured steps share one arena, and so do tensors that are gone
  // before a step begins. Calls nest.
  virtual void enter_arena() {}
  virtual void leave_arena() {}

  size_t in_use() const { return in_use_; }
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = in_use_.load(); }

  // Bytes of the tensors held for a purpose. Memory in use beyond all of these is kernels' scratch.
  size_t held(Purpose purpose) const { return held_[size_t(purpose)]; }
  std::string holdings() const;  // "weights 6.5 GiB, activations 3.2 GiB", for errors
  void hold(Purpose purpose, size_t bytes) { held_[size_t(purpose)] += bytes; }  // called by Tensor alone
  void let_go(Purpose purpose, size_t bytes) noexcept { held_[size_t(purpose)] -= bytes; }

  // The backend that computes on this memory. The CPU's is created by its first use, which may throw.
  Backend& backend() const { return create_backend_ ? create_backend_() : *backend_; }
  void set_backend(Backend& backend) { backend_ = &backend; }
  void create_backend_by(Backend& (*create)()) { create_backend_ = create; }

 protected:
  void count(size_t bytes);
  void uncount(size_t bytes) noexcept { in_use_ -= bytes; }

 private:
  std::atomic<size_t> in_use_{0}, peak_{0};
  std::array<std::atomic<size_t>, kPurposes> held_{};
  std::vector<Mover*> movers_;
  Backend* backend_ = nullptr;
  Backend& (*create_backend_)() = nullptr;
};

// While it lives, allocations come from the arena.
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
