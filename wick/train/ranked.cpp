#include "wick/train/ranked.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "wick/backend/registry.h"
#include "wick/pipelines/devices.h"

namespace wick {
namespace {

// A rank's own device among those of its machine.
std::string device_of(const TrainConfig& config, const RankPlace& place) {
  check_usage(config.gpus.empty(),
              "--gpus: this process is rank {} of {} that a launcher started, each with a device; "
              "expected none",
              place.rank, place.count);
  check_usage(!config.device.starts_with("cuda:"),
              "--device {}: each rank takes the device of its own number on its machine; expected auto, cuda or cpu",
              config.device);
  const bool on_cuda =
      config.device == "cuda" || (config.device == "auto" && cuda_report(/*detailed=*/false).problem.empty());
  return on_cuda ? fmt::format("cuda:{}", place.local) : "cpu";
}

RunResult train_in_threads(const TrainConfig& config, const Checkpoint& model,
                           const std::vector<std::string>& devices) {
  std::vector<std::unique_ptr<Ranks>> ranks = Ranks::of_threads(int(devices.size()));
  const auto copies = std::make_shared<HostCopies>(devices.size());
  std::vector<std::exception_ptr> errors(devices.size());
  std::vector<RunResult> results(devices.size(), RunResult::finished);
  on_threads(devices.size(), [&](size_t rank) {
    try {
      results[rank] = train(config, model, *ranks[rank], devices[rank], /*takes_signals=*/rank == 0, copies);
    } catch (const RankError&) {  // another one is the cause
      errors[rank] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return results.front();
}

}  // namespace

RunResult train_on_ranks(TrainConfig config, const Checkpoint& model) {
  if (const std::optional<RankPlace> place = rank_from_environment()) {
    const std::string device = device_of(config, *place);
    const std::unique_ptr<Ranks> ranks = Ranks::connect(*place);
    return train(std::move(config), model, *ranks, device);
  }
  const std::vector<std::string> devices = devices_of(config.gpus);
  if (devices.size() > 1) return train_in_threads(config, model, devices);
  if (devices.empty()) return train(std::move(config), model);
  Ranks alone;
  return train(std::move(config), model, alone, devices.front());
}

}  // namespace wick
