// `wick doctor`: the devices and libraries of this machine. Ends with 0 whatever it finds.
#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "wait_policy.h"
#include "wick/backend/registry.h"
#include "wick/core/cpus.h"
#include "wick/core/memory.h"
#include "wick/io/count.h"

namespace wick {
namespace {

void print_row(const std::string& name, const std::string& value) { fmt::print("{:<12} {}\n", name, value); }

void doctor() {
  print_row("wick", WICK_VERSION);
  print_row("cpu", fmt::format("{}, which wait by {}", count_of(usable_cpus(), "thread"), cli::wait_policy()));
  const BackendReport cuda = cuda_report();
  print_row("cuda module", cuda_module_path());
  print_row("driver", cuda.driver.empty() ? "none" : cuda.driver);
  for (const std::string& library : cuda.libraries) print_row("library", library);
  for (const DeviceReport& d : cuda.devices) {
    print_row(d.name, fmt::format("{}, compute capability {}, {} of {} free", d.model, d.architecture,
                                  readable_bytes(d.free_bytes), readable_bytes(d.total_bytes)));
    if (!d.problem.empty()) print_row("", d.problem);
    for (size_t begin = 0; d.problem.empty() && begin < d.kernels.size();) {
      const size_t end = std::min(d.kernels.find("; ", begin), d.kernels.size());
      print_row("", d.kernels.substr(begin, end - begin));
      begin = end + 2;
    }
  }
  if (!cuda.problem.empty()) print_row("cuda", "not used: " + cuda.problem);
  print_row("--device", fmt::format("auto takes {}", open_backend("auto").name()));
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Show what this machine has: devices, driver, libraries, kernels");
  command->footer(
      "Ends with 0 whatever it finds.\n"
      "\n"
      "Examples:\n"
      "  wick doctor\n"
      "  CUDA_VISIBLE_DEVICES=1 wick doctor");
  command->callback(doctor);
}

}  // namespace wick
