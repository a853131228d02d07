// The one function that a backend opened at run time exports. It returns this table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "wick/backend/backend.h"

namespace wick {

struct DeviceReport {
  std::string name;          // "cuda:0"
  std::string model;         // "NVIDIA H100 80GB HBM3"
  std::string architecture;  // "9.0"
  size_t total_bytes;
  std::optional<size_t> free_bytes;  // in a detailed report
  std::string kernels;               // the kernels of the LoRA linear, attention and convolution; in a detailed report
  std::string problem;               // why it cannot be used, or empty
};

// What lies between two devices.
struct LinkReport {
  int from, to;       // numbers of devices, the lower one first
  std::string means;  // "NVLink (18 links a device, through a switch), peer access"
};

struct BackendReport {
  std::string driver;                  // its version, or empty
  std::string problem;                 // why there is no device, or empty
  std::vector<std::string> libraries;  // "cuBLASLt 13.1.0", or a missing one and its purpose; in a detailed report
  std::vector<DeviceReport> devices;
  std::vector<LinkReport> links;  // a row a pair of devices; in a detailed report
};

struct BackendModule {
  const char* build_id;                       // of the contract against which it was built
  int (*device_count)(std::string& problem);  // 0 and why, if there is none
  Backend& (*open)(int device);               // made once; lives as long as the program
  // In detail it opens libraries, which takes a tenth of a second, and asks each device for its free memory.
  BackendReport (*report)(bool detailed);
  // None where it cannot be used. The device keeps a context for this process from then on, some 0.5 GiB.
  std::optional<size_t> (*free_bytes)(int device);
};

inline constexpr const char* kModuleEntry = "wick_backend_module";

}  // namespace wick

extern "C" const wick::BackendModule* wick_backend_module();
