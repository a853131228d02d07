// `wick doctor`: the devices and libraries of this machine, and this process's place among ranks. Ends with 0 whatever
// it finds.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/registry.h"
#include "wick/core/memory.h"
#include "wick/io/count.h"
#include "wick/ranks/launch.h"
#include "wick/ranks/socket.h"

namespace wick {
namespace {

void print_row(const std::string& name, const std::string& value) { fmt::print("{:<12} {}\n", name, value); }

// "cuda:0 to cuda:7: MEANS" where all pairs are alike; else a row for each kind, with its pairs.
void print_links(const BackendReport& cuda) {
  std::vector<std::pair<std::string, std::string>> kinds;  // what the way is, and the pairs that have it
  for (const LinkReport& link : cuda.links) {
    const std::string pair =
        fmt::format("{} and {}", cuda.devices[size_t(link.from)].name, cuda.devices[size_t(link.to)].name);
    const auto found = std::ranges::find(kinds, link.means, &std::pair<std::string, std::string>::first);
    if (found == kinds.end())
      kinds.emplace_back(link.means, pair);
    else
      found->second += ", " + pair;
  }
  const bool all_alike = kinds.size() == 1 && cuda.links.size() > 1;
  for (const auto& [means, pairs] : kinds)
    print_row("link", fmt::format("{}: {}",
                                  all_alike ? fmt::format("any two of {} to {}", cuda.devices.front().name,
                                                          cuda.devices.back().name)
                                            : pairs,
                                  means));
}

// This process's place in a run, by the launcher's variables.
void print_rank() try {
  const std::optional<RankPlace> place = rank_from_environment();
  if (!place) return;
  const std::string where = place->id_file.empty() ? host_and_port(place->address, place->port)
                                                   : "the place that " + place->id_file + " tells";
  print_row("rank", fmt::format("{} of {}, number {} on this machine; rank 0 is at {}", place->rank, place->count,
                                place->local, where));
} catch (const UsageError& e) {
  print_row("rank", e.what());
}

void doctor() {
  print_row("wick", WICK_VERSION);
  print_row("cpu", fmt::format("{}", count_of(thread_count(), "thread")));
  const BackendReport cuda = cuda_report();
  print_row("cuda module", cuda_module_path());
  print_row("driver", cuda.driver.empty() ? "none" : cuda.driver);
  for (const std::string& library : cuda.libraries) print_row("library", library);
  for (const DeviceReport& d : cuda.devices) {
    const std::string total = readable_bytes(d.total_bytes);
    print_row(d.name,
              fmt::format("{}, compute capability {}, {}", d.model, d.architecture,
                          d.free_bytes ? fmt::format("{} of {} free", readable_bytes(*d.free_bytes), total) : total));
    if (!d.problem.empty()) print_row("", d.problem);
    for (size_t begin = 0; d.problem.empty() && begin < d.kernels.size();) {
      const size_t end = std::min(d.kernels.find("; ", begin), d.kernels.size());
      print_row("", d.kernels.substr(begin, end - begin));
      begin = end + 2;
    }
  }
  print_links(cuda);
  if (!cuda.problem.empty()) print_row("cuda", "not used: " + cuda.problem);
  print_rank();
  print_row("--device", fmt::format("auto takes {}", open_backend("auto").name()));
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Show what this machine has: devices, links between them, driver, libraries, kernels");
  command->footer(
      "Ends with 0 whatever it finds. Started by torchrun, mpirun or srun it also tells which rank it is.\n"
      "\n"
      "Examples:\n"
      "  wick doctor\n"
      "  CUDA_VISIBLE_DEVICES=1 wick doctor");
  command->callback(doctor);
}

}  // namespace wick
