#include "wick/backend/cuda/runtime/pool.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "wick/backend/cuda/runtime/check.h"

namespace wick {
Pool::Pool(int device, cudaStream_t stream) : device_(device), stream_(stream) {
  const char* pool = std::getenv("WICK_CUDA_POOL");
  off_ = pool && pool == std::string_view("off");
}

Pool::~Pool() {
  cudaStreamSynchronize(stream_);
  for (Segments* segments : {&general_, &arena_segments_})
    for (const size_t segment : segments->trim()) cudaFree(reinterpret_cast<void*>(segment));
}

void* Pool::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  ++requests_;
  void* const data = off_ && !arenas_ ? from_driver(std::max<size_t>(bytes, 1))
                                      : from_segments(arenas_ ? arena_segments_ : general_, bytes);
  most_reserved_ = std::max(most_reserved_, reserved());
  return data;
}

void* Pool::from_segments(Segments& segments, size_t bytes) {
  std::optional<size_t> address = segments.allocate(bytes);
  if (address) {
    ++hits_;
  } else {
    const size_t size = Segments::segment_for(bytes);
    void* segment = ask_driver(size);
    if (!segment) {  // kept segments may be in the way
      trim_general();
      segment = ask_driver(size);
    }
    if (!segment) out_of_memory(bytes);
    segments.add(reinterpret_cast<size_t>(segment), size);
    address = segments.allocate(bytes);
  }
  count(segments.size_of(*address));
  return reinterpret_cast<void*>(*address);
}

void* Pool::from_driver(size_t bytes) {
  void* const data = ask_driver(bytes);
  if (!data) out_of_memory(bytes);
  from_driver_[data] = bytes;
  count(bytes);
  return data;
}

void* Pool::ask_driver(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  cuda_check(status, "cudaMalloc");
  return data;
}

void Pool::release(void* data, size_t) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto own = from_driver_.find(data); own != from_driver_.end()) {
    uncount(own->second);
    from_driver_.erase(own);
    cudaFree(data);  // waits for the device
    return;
  }
  const size_t address = reinterpret_cast<size_t>(data);
  Segments& segments = general_.holds(address) ? general_ : arena_segments_;
  uncount(segments.size_of(address));
  segments.release(address);
}

void Pool::trim() {
  const std::lock_guard lock(mutex_);
  trim_general();
}

void Pool::trim_general() {
  for (const size_t segment : general_.trim()) cudaFree(reinterpret_cast<void*>(segment));  // waits for the device
}

size_t Pool::reserved() const {
  size_t bytes = general_.taken() + arena_segments_.taken();
  for (const auto& [data, size] : from_driver_) bytes += size;
  return bytes;
}

void Pool::write(void* to, const void* host, size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_), "copying to the device");
}

void Pool::fill(const std::vector<Filling>& fillings) {
  if (!upload_) upload_ = std::make_unique<Upload>(device_, stream_);
  (*upload_)(fillings);
}

void Pool::read(void* host, const void* from, size_t bytes) {
  cuda_check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_), "copying from the device");
  cuda_check(cudaStreamSynchronize(stream_), "waiting for the device");
}

std::unique_ptr<Readback> Pool::read_later(const void* from, size_t bytes) {
  return readbacks_.start(from, bytes, stream_);
}

TransferStream& Pool::transfers(Direction direction) {
  std::shared_ptr<TransferStream>& stream = transfers_[direction];
  if (!stream) stream = std::make_shared<TransferStream>(direction);
  return *stream;
}

std::unique_ptr<Transfer> Pool::make_transfer(Direction direction) {
  return transfers(direction).make_transfer(stream_);
}

std::unique_ptr<Transfer> Pool::make_staged_transfer(size_t most) {
  return transfers(Direction::to_device).make_staged_transfer(stream_, host_side_, most);
}

MemoryStats Pool::stats() const {
  const std::lock_guard lock(mutex_);
  return {in_use(), peak(), reserved(), most_reserved_, requests_, hits_};
}

void Pool::out_of_memory(size_t bytes) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  const size_t kept = reserved();
  throw OutOfMemory(fmt::format(
      "out of memory on cuda:{}: {} were asked for, {} of {} are free; Wick holds {} ({}) and keeps {} more, others "
      "hold {}",
      device_, readable_bytes(bytes), readable_bytes(free), readable_bytes(total), readable_bytes(in_use()), holdings(),
      readable_bytes(kept - std::min(kept, in_use())), readable_bytes(total - free - std::min(total - free, kept))));
}

}  // namespace wick
