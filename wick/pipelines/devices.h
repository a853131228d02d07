// Several CUDA devices of this machine, each with a thread of this process.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace wick {

// The devices that --gpus names: how many ("4"), "all", or their numbers ("0,2"); none for an empty text. Throws
// UsageError where it makes no sense, and Error where a device is not there.
std::vector<std::string> devices_of(const std::string& gpus);
// The same, whether they are there or not, but for "all", of which there has to be one.
std::vector<std::string> asked_devices(const std::string& gpus);

// Whether these devices of this machine all reach each other's memory, so that copy engines sum.
bool reach_each_other(const std::vector<std::string>& devices);

// f(i) on a thread for each i below `count`, 0 on the caller's. Returns when all have ended; the first error, by
// number, is thrown. Devices are opened in the thread that computes on them.
void on_threads(size_t count, const std::function<void(size_t)>& f);

}  // namespace wick
