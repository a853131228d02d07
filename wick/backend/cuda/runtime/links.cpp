#include "wick/backend/cuda/runtime/links.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <string>

namespace wick {
namespace {

// The part of NVML's C interface that is used, as nvml.h has it: its header is not needed to build.
using Result = int;  // nvmlReturn_t; 0 is success
using NvmlGpu = struct nvmlDevice_st*;
struct PciInfo {  // nvmlPciInfo_t
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
constexpr unsigned kMostLinks = 18;             // NVML_NVLINK_MAX_LINKS; a link that is not there is an error
constexpr int kP2pOfNvlink = 2, kP2pWorks = 0;  // nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t
constexpr unsigned kLinkIsUp = 1;               // nvmlEnableState_t

// nvmlGpuTopologyLevel_t, with nvidia-smi's words for it.
const char* pcie_in_words(int level) {
  switch (level) {
    case 0:
      return "PCIe on one board";
    case 10:
      return "PCIe through one switch (PIX)";
    case 20:
      return "PCIe through several switches (PXB)";
    case 30:
      return "PCIe through a host bridge (PHB)";
    case 40:
      return "PCIe through host bridges of one NUMA node (NODE)";
    default:
      return "PCIe and what joins the processors (SYS)";
  }
}

// Where it cannot be opened, or has not what is asked for, it knows nothing.
class Nvml {
 public:
  Nvml() {
    if (!handle_) return;
    const bool is_whole = find(init_, "nvmlInit_v2") && find(shutdown_, "nvmlShutdown") &&
                          find(gpu_at_, "nvmlDeviceGetHandleByPciBusId_v2") &&
                          find(ancestor_, "nvmlDeviceGetTopologyCommonAncestor") &&
                          find(p2p_, "nvmlDeviceGetP2PStatus") && find(link_state_, "nvmlDeviceGetNvLinkState") &&
                          find(link_end_, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    is_open_ = is_whole && init_() == 0;
  }
  ~Nvml() {
    if (is_open_) shutdown_();
    if (handle_) dlclose(handle_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool is_open() const { return is_open_; }

  // Null where it has no such device. CUDA_VISIBLE_DEVICES numbers devices otherwise than NVML, so they go by their
  // place.
  NvmlGpu find_gpu(int device) const {
    char id[32] = "";
    NvmlGpu gpu = nullptr;
    if (!is_open_ || cudaDeviceGetPCIBusId(id, sizeof id, device) != cudaSuccess) return nullptr;
    return gpu_at_(id, &gpu) == 0 ? gpu : nullptr;
  }

  bool is_nvlink_between(NvmlGpu a, NvmlGpu b) const {
    int status = -1;
    return p2p_(a, b, kP2pOfNvlink, &status) == 0 && status == kP2pWorks;
  }

  int links(NvmlGpu gpu) const {
    int count = 0;
    for (unsigned link = 0; link < kMostLinks; ++link) count += is_up(gpu, link);
    return count;
  }

  // Those without a switch between.
  int links_between(NvmlGpu gpu, int other) const {
    char id[32] = "";
    if (cudaDeviceGetPCIBusId(id, sizeof id, other) != cudaSuccess) return 0;
    int count = 0;
    for (unsigned link = 0; link < kMostLinks; ++link) {
      PciInfo end{};
      count += is_up(gpu, link) && link_end_(gpu, link, &end) == 0 && is_same_place(id, end.id);
    }
    return count;
  }

  std::optional<int> common_ancestor(NvmlGpu a, NvmlGpu b) const {
    int level = -1;
    return ancestor_(a, b, &level) == 0 ? std::optional(level) : std::nullopt;
  }

 private:
  template <class F>
  bool find(F& function, const char* name) const {
    function = reinterpret_cast<F>(dlsym(handle_, name));
    return function != nullptr;
  }

  bool is_up(NvmlGpu gpu, unsigned link) const {
    unsigned state = 0;
    return link_state_(gpu, link, &state) == 0 && state == kLinkIsUp;
  }

  // CUDA's domain has 4 digits, NVML's 8: "0000:1B:00.0" is "00000000:1b:00.0".
  static bool is_same_place(const std::string& cuda, const std::string& nvml) {
    const auto same = [](char a, char b) { return std::tolower(uint8_t(a)) == std::tolower(uint8_t(b)); };
    return cuda.size() <= nvml.size() && std::equal(cuda.rbegin(), cuda.rend(), nvml.rbegin(), same);
  }

  void* handle_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  Result (*init_)() = nullptr;
  Result (*shutdown_)() = nullptr;
  Result (*gpu_at_)(const char*, NvmlGpu*) = nullptr;
  Result (*ancestor_)(NvmlGpu, NvmlGpu, int*) = nullptr;
  Result (*p2p_)(NvmlGpu, NvmlGpu, int, int*) = nullptr;
  Result (*link_state_)(NvmlGpu, unsigned, unsigned*) = nullptr;
  Result (*link_end_)(NvmlGpu, unsigned, PciInfo*) = nullptr;
  bool is_open_ = false;
};

// "NVLink (12 links)", "NVLink (18 links a device, through a switch)", "PCIe ..."; empty where NVML does not say.
std::string wires(const Nvml& nvml, int from, int to) {
  const NvmlGpu a = nvml.find_gpu(from), b = nvml.find_gpu(to);
  if (!a || !b) return {};
  if (const int direct = nvml.links_between(a, to); direct > 0)
    return fmt::format("NVLink ({} link{})", direct, direct == 1 ? "" : "s");
  if (nvml.is_nvlink_between(a, b))
    return fmt::format("NVLink ({} links a device, through a switch)", std::min(nvml.links(a), nvml.links(b)));
  const std::optional<int> level = nvml.common_ancestor(a, b);
  return level ? pcie_in_words(*level) : "";
}

std::optional<int> attribute(cudaDeviceP2PAttr which, int from, int to) {
  int value = 0;
  return cudaDeviceGetP2PAttribute(&value, which, from, to) == cudaSuccess ? std::optional(value) : std::nullopt;
}

// "peer access with atomics", which devices have over NVLink; "no peer access: ...".
std::string access(int from, int to, bool with_rank) {
  if (!reach_each_other(from, to)) return "no peer access: through the host's memory";
  std::string text = "peer access";
  if (attribute(cudaDevP2PAttrNativeAtomicSupported, from, to).value_or(0)) text += " with atomics";
  const std::optional<int> rank = attribute(cudaDevP2PAttrPerformanceRank, from, to);
  return with_rank && rank ? fmt::format("{} of performance rank {}", text, *rank) : text;
}

}  // namespace

bool reach_each_other(int a, int b) {
  const char* const off = std::getenv("NCCL_P2P_DISABLE");
  if (off && *off == '1') return false;
  const auto reaches = [](int from, int to) {
    int can = 0;
    return cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess && can != 0;
  };
  return reaches(a, b) && reaches(b, a);
}

std::vector<LinkReport> describe_links(int devices) {
  std::vector<LinkReport> all;
  if (devices < 2) return all;
  const Nvml nvml;
  for (int from = 0; from < devices; ++from)
    for (int to = from + 1; to < devices; ++to) {
      const std::string by = wires(nvml, from, to);
      const std::string unknown = nvml.is_open() ? "unknown to NVML" : "NVML (libnvidia-ml.so.1) could not be opened";
      all.push_back(
          {from, to, (by.empty() ? unknown : by) + ", " + access(from, to, by.empty()), reach_each_other(from, to)});
    }
  cudaGetLastError();
  return all;
}

}  // namespace wick
