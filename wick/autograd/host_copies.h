// Frozen weights on the host that threads of this process share, each of which loads the same model for a device of its
// own. Memory that is page-locked for one device is so for all, and what never changes may lie there once.
//
// A copy lives while someone holds it. Its memory is of the thread's device that made it, which has to outlive it.
// Safe for use by several threads at once.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "wick/core/tensor.h"

namespace wick {

class HostCopies {
 public:
  explicit HostCopies(size_t threads) : threads_(threads) {}
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  size_t threads() const { return threads_; }  // that share the copies

  // The copy of that name, of `bytes` bytes: made by `make` where there is none. Who asks for it meanwhile waits; where
  // `make` throws, so does this call, and one of those makes it. Throws Error where there is one of other bytes.
  std::shared_ptr<const Tensor> find_or_make(const std::string& name, size_t bytes,
                                             const std::function<Tensor()>& make);

 private:
  struct Entry {
    std::weak_ptr<const Tensor> copy;
    bool is_being_made = false;
  };

  size_t threads_;
  std::mutex mutex_;
  std::condition_variable ended_;  // some make
  std::map<std::string, Entry> entries_;
};

}  // namespace wick
