#include "wick/backend/registry.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace wick {
namespace {

namespace fs = std::filesystem;

struct Cuda {
  const BackendModule* module = nullptr;
  std::string path, problem;
};

std::string find_module() {
  if (const char* given = std::getenv("WICK_CUDA_MODULE")) return given;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* place : {"libwick-cuda.so", "../lib/libwick-cuda.so"})
    if (fs::exists(program / place, ignored)) return (program / place).lexically_normal();
  return program / "libwick-cuda.so";
}

#ifdef WICK_CUDA_STATIC
Cuda load() { return {wick_backend_module(), "built in", ""}; }
#else
Cuda load() {
  Cuda cuda;
  cuda.path = find_module();
  if (!fs::exists(cuda.path)) {
    cuda.problem = fmt::format("this build has no CUDA module ({} is not there)", cuda.path);
    return cuda;
  }
  void* handle = dlopen(cuda.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    cuda.problem = fmt::format("the CUDA module could not be opened: {}", dlerror());
    return cuda;
  }
  using Entry = const BackendModule* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, kModuleEntry));
  const BackendModule* module = entry ? entry() : nullptr;
  // Nothing but the first field may be read before the ids agree.
  if (!module || std::strcmp(module->build_id, WICK_BUILD_ID) != 0)
    cuda.problem = fmt::format("{} belongs to another build of wick; install both from one build", cuda.path);
  else
    cuda.module = module;
  return cuda;
}
#endif

const Cuda& cuda() {
  static const Cuda loaded = load();
  return loaded;
}

// N of "cuda:N", 0 of "cuda", -1 of anything else.
int cuda_index(const std::string& device) {
  if (device == "cuda") return 0;
  if (device.rfind("cuda:", 0) != 0) return -1;
  int index = -1;
  const char *begin = device.data() + 5, *end = device.data() + device.size();
  const auto [rest, error] = std::from_chars(begin, end, index);
  return error == std::errc() && rest == end && begin != end && *begin != '-' ? index : -1;
}

int device_count(std::string& problem) {
  problem = cuda().problem;
  return cuda().module ? cuda().module->device_count(problem) : 0;
}

// Bytes of the process's address space, where that is limited (`ulimit -v`), beside those for oneDNN's code: what it
// holds in the end, and the same again, which has to be free at each of its calls (cpu/onednn.cpp).
std::optional<size_t> free_addresses() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  size_t pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages)) return {};
  constexpr size_t kCode = size_t{64} << 20;
  const size_t taken = pages * size_t(::sysconf(_SC_PAGESIZE)) + kCode;
  return limit.rlim_cur - std::min<size_t>(limit.rlim_cur, taken);
}

BackendReport report(bool detailed) {
  return cuda().module ? cuda().module->report(detailed) : BackendReport{.problem = cuda().problem};
}

}  // namespace

bool is_device_name(const std::string& device) {
  return device == "auto" || device == "cpu" || cuda_index(device) >= 0;
}

Backend& open_backend(const std::string& device) {
  check_usage(is_device_name(device), "--device: expected auto, cpu, cuda or cuda:N, found \"{}\"", device);
  if (device == "cpu") return cpu_backend();
  std::string problem;
  const int count = device_count(problem);
  if (device == "auto") return count > 0 ? cuda().module->open(0) : cpu_backend();
  check(count > 0, "--device {}: {}; `wick doctor` shows what was found, --device cpu runs without it", device,
        problem);
  const int index = cuda_index(device);
  check(index < count, "--device {}: there {} (cuda:0{}); `wick doctor` lists them", device,
        count == 1 ? "is one CUDA device" : fmt::format("are {} CUDA devices", count),
        count == 1 ? "" : fmt::format(" to cuda:{}", count - 1));
  return cuda().module->open(index);
}

std::optional<size_t> free_memory(std::string_view device) {
  if (device != "cpu") {
    std::string problem;
    const int index = cuda_index(std::string(device));
    return index >= 0 && index < device_count(problem) ? cuda().module->free_bytes(index) : std::nullopt;
  }
  std::ifstream meminfo("/proc/meminfo");
  size_t kibibytes = 0;
  for (std::string key, rest; meminfo >> key; std::getline(meminfo, rest))
    if (key == "MemAvailable:" && meminfo >> kibibytes)
      return std::min(kibibytes * 1024, free_addresses().value_or(SIZE_MAX));
  return {};
}

std::string architecture_of(std::string_view device) {
  for (const DeviceReport& d : report(/*detailed=*/false).devices)
    if (d.name == (device == "cuda" ? "cuda:0" : device)) return d.architecture;
  return {};
}

BackendReport cuda_report(bool detailed) { return report(detailed); }

std::string cuda_module_path() { return cuda().path; }

}  // namespace wick
