#include "wick/backend/cuda/pool.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "wick/backend/cuda/check.h"

namespace wick {
namespace {

constexpr size_t kAlign = 512;
constexpr size_t kSmall = size_t{1} << 20;           // smaller requests share segments of
constexpr size_t kSmallSegment = size_t{2} << 20;    // this size; medium ones
constexpr size_t kMedium = size_t{10} << 20;         // share segments of
constexpr size_t kMediumSegment = size_t{32} << 20;  // this one; larger ones get their own,
constexpr size_t kLargeUnit = size_t{2} << 20;       // in whole units.

size_t rounded(size_t bytes, size_t unit) { return (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit; }

size_t segment_for(size_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  return bytes <= kMedium ? kMediumSegment : rounded(bytes, kLargeUnit);
}

// A large block is not cut up for a much smaller request: it would be missing for the next large one.
bool fits(size_t block, size_t bytes) {
  if (bytes <= kSmall) return block <= kSmallSegment;
  return block > kSmallSegment || bytes <= kSmallSegment;
}

}  // namespace

Pool::Pool(int device, cudaStream_t stream) : device_(device), stream_(stream) {
  const char* pool = std::getenv("WICK_CUDA_POOL");
  off_ = pool && pool == std::string_view("off");
}

Pool::~Pool() {
  cudaStreamSynchronize(stream_);
  for (Heap* heap : {&general_, &arena_heap_})
    for (auto& [data, block] : heap->blocks)
      if (block.first) cudaFree(data);
}

void* Pool::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  Heap& heap = arena_ ? arena_heap_ : general_;
  const bool exact = off_ && !arena_;
  const size_t size = rounded(bytes, exact ? 1 : kAlign);
  ++requests_;
  Block* block = exact ? nullptr : find(heap, size);
  if (block)
    ++hits_;
  else
    block = grow(heap, size, exact ? size : segment_for(size));
  heap.free.erase(block);
  split(heap, *block, size);
  block->free = false;
  count(block->bytes);
  return block->data;
}

Pool::Block* Pool::find(Heap& heap, size_t bytes) {
  Block wanted{nullptr, bytes, true, false, false};
  for (auto it = heap.free.lower_bound(&wanted); it != heap.free.end(); ++it)
    if (fits((*it)->bytes, bytes)) return *it;
  return nullptr;
}

Pool::Block* Pool::grow(Heap& heap, size_t bytes, size_t segment) {
  void* data = nullptr;
  cudaError_t status = cudaMalloc(&data, segment);
  if (status == cudaErrorMemoryAllocation) {  // what is kept may be in the way
    cudaGetLastError();
    trim(general_);
    trim(arena_heap_);
    status = cudaMalloc(&data, segment);
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    out_of_memory(bytes);
  }
  cuda_check(status, "cudaMalloc");
  heap.reserved += segment;
  Block& block = heap.blocks[static_cast<char*>(data)] = {static_cast<char*>(data), segment, true, true, true};
  heap.free.insert(&block);
  return &block;
}

// Cuts what is not needed off the end of a block and leaves it free.
void Pool::split(Heap& heap, Block& block, size_t bytes) {
  if (block.bytes - bytes < kAlign || (block.bytes > kSmallSegment && block.bytes - bytes < kSmall)) return;
  Block& rest = heap.blocks[block.data + bytes] = {block.data + bytes, block.bytes - bytes, true, false, block.last};
  block.bytes = bytes;
  block.last = false;
  heap.free.insert(&rest);
}

void Pool::release(void* data, size_t) noexcept {
  const std::lock_guard lock(mutex_);
  Heap& heap = general_.blocks.count(static_cast<char*>(data)) ? general_ : arena_heap_;
  auto it = heap.blocks.find(static_cast<char*>(data));
  uncount(it->second.bytes);
  it->second.free = true;
  if (!it->second.last) {
    const auto next = std::next(it);
    if (next->second.free) {
      heap.free.erase(&next->second);
      it->second.bytes += next->second.bytes;
      it->second.last = next->second.last;
      heap.blocks.erase(next);
    }
  }
  if (!it->second.first) {
    const auto before = std::prev(it);
    if (before->second.free) {
      heap.free.erase(&before->second);
      before->second.bytes += it->second.bytes;
      before->second.last = it->second.last;
      heap.blocks.erase(it);
      it = before;
    }
  }
  heap.free.insert(&it->second);
  if (off_) trim(general_);
}

void Pool::trim() {
  const std::lock_guard lock(mutex_);
  trim(general_);
}

void Pool::trim(Heap& heap) {
  if (&heap == &arena_heap_ && !arena_) return;  // graphs hold its addresses
  for (auto it = heap.blocks.begin(); it != heap.blocks.end();) {
    const Block& block = it->second;
    if (!(block.free && block.first && block.last)) {
      ++it;
      continue;
    }
    heap.free.erase(&it->second);
    heap.reserved -= block.bytes;
    cudaFree(block.data);  // waits for the device
    it = heap.blocks.erase(it);
  }
}

void Pool::write(void* to, const void* host, size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_), "copying to the device");
}

void Pool::read(void* host, const void* from, size_t bytes) {
  cuda_check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_), "copying from the device");
  cuda_check(cudaStreamSynchronize(stream_), "waiting for the device");
}

std::unique_ptr<Readback> Pool::read_later(const void* from, size_t bytes) {
  return readbacks_.start(from, bytes, stream_);
}

MemoryStats Pool::stats() const {
  const std::lock_guard lock(mutex_);
  return {in_use(), peak(), general_.reserved + arena_heap_.reserved, requests_, hits_};
}

void Pool::out_of_memory(size_t bytes) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  const size_t reserved = general_.reserved + arena_heap_.reserved;
  throw OutOfMemory(fmt::format(
      "out of memory on cuda:{}: {} were asked for, {} of {} are free; Wick holds {} ({}) and keeps {} more, others "
      "hold {}",
      device_, readable_bytes(bytes), readable_bytes(free), readable_bytes(total), readable_bytes(in_use()), holdings(),
      readable_bytes(reserved - std::min(reserved, in_use())),
      readable_bytes(total - free - std::min(total - free, reserved))));
}

}  // namespace wick
