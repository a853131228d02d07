// Kernels over many tensors at once. Their table is a kernel argument, so that nothing has to reach the device first;
// entries beyond the arguments of one launch go to the next.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "wick/backend/cuda/device/integers.h"

namespace wick {

inline constexpr int64_t kSlotPart = 8192;  // elements that a block works on

// Drivers of CUDA 12.1 (R530) and later take 32764 bytes.
inline constexpr size_t kTableBytes = (CUDART_VERSION >= 12010 ? 32764 : 4096) - 256;

// The blocks of threads that work on a slot: its own `blocks`, or one for each kSlotPart of its `numel`.
template <class Slot>
int64_t blocks_of(const Slot& slot) {
  if constexpr (requires { slot.blocks; })
    return slot.blocks;
  else
    return ceil_div(slot.numel, kSlotPart);
}

template <class Slot>
struct SlotTable {
  static constexpr int kSlots = int((kTableBytes - 2 * sizeof(uint64_t)) / (sizeof(Slot) + sizeof(uint32_t)));

  int count = 0;
  uint32_t blocks = 0;
  uint32_t first_block[kSlots];
  Slot slots[kSlots];

  bool add(const Slot& slot) {
    if (count == kSlots) return false;
    first_block[count] = blocks;
    slots[count++] = slot;
    blocks += uint32_t(blocks_of(slot));
    return true;
  }
};

// Calls launch(table) with tables that hold all slots, which are few or many.
template <class Slot, class Launch>
void in_tables(const std::vector<Slot>& slots, const Launch& launch) {
  SlotTable<Slot> table;
  for (const Slot& slot : slots) {
    if (blocks_of(slot) == 0 || table.add(slot)) continue;
    launch(table);
    table.count = table.blocks = 0;
    table.add(slot);
  }
  if (table.count > 0) launch(table);
}

// A block's slot, and its place among the slot's blocks.
template <class Slot>
struct SlotBlock {
  const Slot& slot;
  int64_t index;
};
template <class Slot>
__device__ __forceinline__ SlotBlock<Slot> block_of(const SlotTable<Slot>& table, uint32_t block) {
  int low = 0, high = table.count;  // the last slot that begins at or before the block
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_block[middle] <= block ? low : high) = middle;
  }
  return {table.slots[low], int64_t(block - table.first_block[low])};
}

// The elements that a block works on.
template <class Slot>
struct SlotPart {
  const Slot& slot;
  int64_t begin, end;
};
template <class Slot>
__device__ __forceinline__ SlotPart<Slot> part_of(const SlotTable<Slot>& table, uint32_t block) {
  const auto [slot, index] = block_of(table, block);
  const int64_t begin = index * kSlotPart, end = begin + kSlotPart;
  return {slot, begin, end < slot.numel ? end : slot.numel};
}

}  // namespace wick
