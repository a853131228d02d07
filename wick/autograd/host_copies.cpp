#include "wick/autograd/host_copies.h"

#include "wick/core/error.h"

namespace wick {

std::shared_ptr<const Tensor> HostCopies::find_or_make(const std::string& name, size_t bytes,
                                                       const std::function<Tensor()>& make) {
  std::unique_lock lock(mutex_);
  Entry& entry = entries_[name];  // stays where it is
  ended_.wait(lock, [&] { return !entry.is_being_made; });
  if (std::shared_ptr<const Tensor> copy = entry.copy.lock()) {
    const auto found = size_t(bytes_of(copy->dtype(), copy->shape()));
    check(found == bytes, "streaming: {} has {} bytes on one device and {} on another", name, found, bytes);
    return copy;
  }
  entry.is_being_made = true;
  std::shared_ptr<const Tensor> copy;
  std::exception_ptr error;
  lock.unlock();
  try {
    copy = std::make_shared<const Tensor>(make());
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  entry.copy = copy;
  entry.is_being_made = false;
  lock.unlock();
  ended_.notify_all();
  if (error) std::rethrow_exception(error);
  return copy;
}

}  // namespace wick
