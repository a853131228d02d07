// The backends, and the choice of one for a user. The CPU is built in; CUDA is a module that is looked for beside the
// program, in ../lib next to it, or in WICK_CUDA_MODULE.
#pragma once

#include <optional>
#include <string>

#include "wick/backend/module.h"

namespace wick {

// "cpu"; "cuda" (its first device) or "cuda:N"; "auto": CUDA where there is a device, else the CPU.
// Anything else, and a device that is not there, is an Error that names the devices found. A device is opened in each
// thread that computes with it, and a thread computes with the last one that it opened.
Backend& open_backend(const std::string& device);

// "cpu", "auto", "cuda" or "cuda:N"?
bool is_device_name(const std::string& device);

// Bytes that can still be allocated on a device ("cpu", "cuda:N"): MemAvailable on the CPU, the driver's free memory on
// CUDA, where the process keeps a context on that device from then on. None where that is not known.
std::optional<size_t> free_memory(std::string_view device);

// The compute capability of "cuda" or "cuda:N", "9.0"; empty where there is no such device.
std::string architecture_of(std::string_view device);

// The module's report; where there is no module its `problem` says so. In detail it opens libraries.
BackendReport cuda_report(bool detailed = true);
// The file that was opened or would be.
std::string cuda_module_path();

}  // namespace wick
