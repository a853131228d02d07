// Frozen weights of a model's blocks that lie in host memory and visit the device while their blocks run.
//
// The streamed blocks take turns in slots of the device's memory: the i-th of them always has slot i mod kSlots, so
// that its tensors have addresses that never change, and steps can be recorded. When a block has run, the next one of
// its slot is on its way while others run. Forward goes through each slot's blocks in their order, backward in reverse,
// so that neither turn brings again what is there. Nothing is ever copied back: frozen weights do not change.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "wick/autograd/host_copies.h"
#include "wick/autograd/tape.h"
#include "wick/core/tensor.h"

namespace wick {

inline const Op kArrival("arrival of weights");

// Where the masters lie, from which blocks come.
struct MasterPlace {
  bool staged = false;  // in ordinary memory of the host instead of page-locked
  // Several threads that stream a model have its masters in common, under one name; else each has its own.
  std::shared_ptr<HostCopies> shared = {};
  std::string name = {};
};

class BlockStream final : public Mover {
 public:
  static constexpr size_t kSlots = 2;

  // bytes[i]: of the weights of the i-th block to run, each tensor's rounded_up(). `count` of them are streamed, their
  // bytes evenly spread.
  BlockStream(Memory& device, const std::vector<size_t>& bytes, size_t count, MasterPlace masters = {});
  ~BlockStream() override;
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  static size_t rounded_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  bool has(size_t block) const { return block < streamed_.size() && streamed_[block]; }
  size_t count() const { return masters_.size(); }

  // Loading, one block after the other: room for a tensor in the slot of its block, to be filled there; and, once all
  // of the block are filled, their way to the host, unless another thread's master is there. An outline has no values
  // to keep, and shares none.
  Tensor room(size_t block, const Shape& shape, DType dtype);
  void keep(size_t block, bool has_values);

  // Running, by every block of the model in its turn.
  enum class Way { forward, backward };
  void enter(size_t block, Way way);
  void rest() override;

 private:
  static constexpr size_t kAlignment = 512;

  struct Slot {
    Tensor room;                  // bytes
    std::optional<size_t> holds;  // by number among the streamed blocks: is there, or on its way
    bool arriving = false;
    std::unique_ptr<Transfer> fetch;
  };

  Slot& slot_of(size_t number) { return slots_[number % slots_.size()]; }
  void fetch(size_t number);
  void settle(Slot& slot);
  void leave(Way way);
  void await_all() noexcept;
  Tensor master_of(const Slot& slot, bool has_values) const;

  Memory& device_;
  MasterPlace place_;
  std::vector<std::optional<size_t>> streamed_;         // by block, its number among the streamed
  std::vector<std::shared_ptr<const Tensor>> masters_;  // bytes on the host, by number
  std::vector<Slot> slots_;
  size_t filled_ = 0;              // bytes of the slot of the block that is being loaded
  std::optional<size_t> current_;  // the number of the block that runs
};

// `y`, the output of a block: its gradient comes to the block, whose weights are there from then on.
Tensor with_arrival(const std::shared_ptr<BlockStream>& stream, size_t block, const Tensor& y);

}  // namespace wick
