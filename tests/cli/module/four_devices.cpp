// A module of this build that tells of four devices and has none.
#include <cstdlib>
#include <string_view>

#include "wick/backend/module.h"

namespace wick {
namespace {

std::optional<size_t> free_bytes(int device) { return size_t(device == 2 ? 40 : 70) << 30; }

BackendReport report(bool detailed) {
  const char* const links = std::getenv("WICK_TEST_LINKS");
  const bool are_alike = links && std::string_view(links) == "alike";
  BackendReport r{.driver = "CUDA 13.0"};
  for (int i = 0; i < 4; ++i) {
    r.devices.push_back({.name = fmt::format("cuda:{}", i),
                         .model = "NVIDIA TEST",
                         .architecture = "9.0",
                         .total_bytes = size_t{80} << 30,
                         .free_bytes = free_bytes(i)});
    for (int to = i + 1; to < 4 && detailed; ++to)
      r.links.push_back({i, to, are_alike || i / 2 == to / 2 ? "NVLink (4 links), peer access" : "PCIe, peer access"});
  }
  return r;
}

constexpr BackendModule kModule{WICK_BUILD_ID, [](std::string&) { return 4; },
                                [](int) -> Backend& { return cpu_backend(); }, report, free_bytes};

}  // namespace
}  // namespace wick

extern "C" __attribute__((visibility("default"))) const wick::BackendModule* wick_backend_module() {
  return &wick::kModule;
}
