#include "wick/backend/cuda/upload.h"

#include <algorithm>
#include <utility>

#include "wick/backend/cuda/check.h"
#include "wick/core/cpus.h"

namespace wick {
namespace {
constexpr size_t kPiece = size_t{1} << 20;
constexpr unsigned kMostReaders = 8;
}  // namespace

Upload::Upload(int device, cudaStream_t stream) : device_(device), stream_(stream) {
  readers_.resize(std::clamp(unsigned(usable_cpus()) / 2, 1u, kMostReaders));
  for (Reader& reader : readers_)
    for (Buffer& buffer : reader.buffers) {
      cuda_check(cudaMallocHost(&buffer.data, kPiece), "cudaMallocHost");
      cuda_check(cudaEventCreateWithFlags(&buffer.taken, cudaEventDisableTiming), "cudaEventCreate");
    }
  for (size_t i = 1; i < readers_.size(); ++i) threads_.emplace_back([this, i] { work(readers_[i]); });
}

Upload::~Upload() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (Reader& reader : readers_)
    for (Buffer& buffer : reader.buffers) {
      cudaEventSynchronize(buffer.taken);
      cudaEventDestroy(buffer.taken);
      cudaFreeHost(buffer.data);
    }
}

void Upload::operator()(void* to, size_t bytes, const Memory::Source& source) {
  job_.to = static_cast<char*>(to);
  job_.bytes = bytes;
  job_.source = &source;
  job_.next = 0;
  const bool several = bytes > kPiece;
  if (several) {
    const std::lock_guard lock(mutex_);
    ++jobs_;
    busy_ = threads_.size();
    begin_.notify_all();
  }
  std::exception_ptr error;
  try {
    read_pieces(readers_.front());
  } catch (...) {
    error = std::current_exception();
  }
  if (several) {
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return busy_ == 0; });
    if (error_) error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

void Upload::work(Reader& reader) {
  cudaSetDevice(device_);
  uint64_t done = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return stop_ || jobs_ > done; });
    if (stop_) return;
    done = jobs_;
    lock.unlock();
    std::exception_ptr error;
    try {
      read_pieces(reader);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    if (--busy_ == 0) end_.notify_one();
  }
}

void Upload::read_pieces(Reader& reader) {
  for (size_t begin; (begin = job_.next.fetch_add(kPiece)) < job_.bytes;) {
    Buffer& buffer = reader.buffers[reader.next ^= 1];
    cuda_check(cudaEventSynchronize(buffer.taken), "waiting for the device");
    const size_t bytes = std::min(kPiece, job_.bytes - begin);
    (*job_.source)(buffer.data, begin, bytes);
    cuda_check(cudaMemcpyAsync(job_.to + begin, buffer.data, bytes, cudaMemcpyHostToDevice, stream_),
               "copying to the device");
    cuda_check(cudaEventRecord(buffer.taken, stream_), "cudaEventRecord");
  }
}

}  // namespace wick
