#include "wick/ranks/launch.h"

#include <charconv>
#include <cstdlib>

#include "wick/core/error.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

constexpr int kMostRanks = 1 << 16, kDefaultPort = 29501;

struct Launcher {
  const char *rank, *count, *local;
};
constexpr Launcher kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr Launcher kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Launcher kSlurm{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_set(const char* name) { return !variable(name).empty(); }

int number_of(const char* name, int least, int most, const std::string& why = "") {
  const std::string text = variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  check_usage(is_number && value >= least && value <= most, "{}: expected a number from {} to {}{}, found {}", name,
              least, most, why, text.empty() ? "nothing" : quote(text));
  return value;
}

// SLURM sets its variables in batch scripts too, and in steps of one task beside a launcher of another kind.
bool is_slurm_step() {
  return is_set(kSlurm.rank) && is_set("SLURM_STEP_ID") && is_set(kSlurm.count) && variable(kSlurm.count) != "1";
}

const Launcher* launcher() {
  if (is_set(kTorchrun.rank) || is_set(kTorchrun.count)) return &kTorchrun;
  if (is_set(kOpenMpi.rank) || is_set(kOpenMpi.count)) return &kOpenMpi;
  return is_slurm_step() ? &kSlurm : nullptr;
}

bool on_one_machine(const Launcher& by) {
  if (&by == &kOpenMpi) return variable("OMPI_COMM_WORLD_LOCAL_SIZE") == variable(by.count);
  return &by == &kSlurm && variable("SLURM_NNODES") == "1";
}

std::string address_of_first(const Launcher& by) {
  if (is_set("MASTER_ADDR")) return variable("MASTER_ADDR");
  check_usage(
      on_one_machine(by),
      "MASTER_ADDR: expected the name or the address of rank 0's machine, since {} tells of {} processes; found "
      "nothing. Set it, or set WICK_ID_FILE to a file on a file system that all machines share",
      by.count, variable(by.count));
  return "127.0.0.1";
}

int port_of_first(bool by_file) {
  if (is_set("WICK_ID_PORT")) return number_of("WICK_ID_PORT", 1, 65535);
  if (by_file) return 0;
  return is_set("MASTER_PORT") ? number_of("MASTER_PORT", 1, 65534) + 1 : kDefaultPort;
}

std::optional<std::chrono::seconds> timeout_given() {
  constexpr int kWeek = 7 * 24 * 3600;
  if (!is_set("WICK_RANK_TIMEOUT")) return {};
  return std::chrono::seconds(number_of("WICK_RANK_TIMEOUT", 1, kWeek, " seconds"));
}

}  // namespace

std::optional<RankPlace> rank_from_environment() {
  const Launcher* by = launcher();
  if (!by) return std::nullopt;
  const std::string because = std::string(", since ") + by->rank + " is set";
  RankPlace place;
  place.count = number_of(by->count, 1, kMostRanks, is_set(by->rank) ? because : "");
  if (place.count == 1 && !is_set(by->rank)) return std::nullopt;
  const std::string among = std::string(" (") + by->count + " is " + variable(by->count) + ")";
  place.rank = number_of(by->rank, 0, place.count - 1, among);
  if (place.count == 1) return std::nullopt;
  place.local = number_of(by->local, 0, place.count - 1, among);
  place.id_file = variable("WICK_ID_FILE");
  if (place.id_file.empty()) place.address = address_of_first(*by);
  place.port = port_of_first(!place.id_file.empty());
  if (const auto timeout = timeout_given()) place.timeout = *timeout;
  return place;
}

void check_rank_variables() {
  port_of_first(/*by_file=*/true);
  timeout_given();
}

}  // namespace wick
