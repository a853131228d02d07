#include "wick/train/ranked.h"

#include <fmt/format.h>

#include <charconv>
#include <exception>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "wick/backend/registry.h"
#include "wick/io/count.h"

namespace wick {
namespace {

int cuda_devices() {
  const BackendReport report = cuda_report();
  check(report.problem.empty(), "--gpus: {}; `wick doctor` shows what was found", report.problem);
  return int(report.devices.size());
}

int number_in(std::string_view text, const std::string& whole) {
  int number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  check_usage(error == std::errc{} && end == text.data() + text.size() && number >= 0 && !text.empty(),
              "--gpus: expected a number of devices, all, or their numbers as 0,2, found '{}'", whole);
  return number;
}

std::vector<int> numbers_of(const std::string& gpus) {
  std::vector<int> numbers;
  if (gpus == "all" || gpus.find(',') == gpus.npos) {
    const int count = gpus == "all" ? cuda_devices() : number_in(gpus, gpus);
    check_usage(count > 0, "--gpus: expected at least 1, found {}", gpus);
    for (int i = 0; i < count; ++i) numbers.push_back(i);
    return numbers;
  }
  std::set<int> seen;
  for (size_t begin = 0; begin <= gpus.size();) {
    const size_t end = std::min(gpus.find(',', begin), gpus.size());
    numbers.push_back(number_in(std::string_view(gpus).substr(begin, end - begin), gpus));
    check_usage(seen.insert(numbers.back()).second, "--gpus {}: device {} is there twice", gpus, numbers.back());
    begin = end + 1;
  }
  return numbers;
}

// A rank's own device among those of its machine.
std::string device_of(const TrainConfig& config, const RankPlace& place) {
  check_usage(config.gpus.empty(),
              "--gpus: this process is rank {} of {} that a launcher started, each with a device; "
              "expected none",
              place.rank, place.count);
  check_usage(!config.device.starts_with("cuda:"),
              "--device {}: each rank takes the device of its own number on its machine; expected auto, cuda or cpu",
              config.device);
  const bool on_cuda = config.device == "cuda" || (config.device == "auto" && cuda_report().problem.empty());
  return on_cuda ? fmt::format("cuda:{}", place.local) : "cpu";
}

RunResult train_in_threads(const TrainConfig& config, const Checkpoint& model,
                           const std::vector<std::string>& devices) {
  std::vector<std::unique_ptr<Ranks>> ranks = Ranks::of_threads(int(devices.size()));
  std::vector<std::exception_ptr> errors(devices.size());
  std::vector<RunResult> results(devices.size(), RunResult::finished);
  const auto run = [&](size_t rank) {
    TrainConfig own = config;
    own.device = devices[rank];
    try {
      results[rank] = train(std::move(own), model, *ranks[rank], /*takes_signals=*/rank == 0);
    } catch (...) {
      errors[rank] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < devices.size(); ++rank) others.emplace_back(run, rank);
  run(0);
  for (std::thread& other : others) other.join();
  // One of them is the cause; the others are told of it.
  for (const std::exception_ptr& error : errors) try {
      if (error) std::rethrow_exception(error);
    } catch (const RankError&) {
    }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return results.front();
}

}  // namespace

std::vector<std::string> devices_of(const TrainConfig& config) {
  if (config.gpus.empty()) return {};
  std::vector<std::string> devices;
  for (const int number : numbers_of(config.gpus)) devices.push_back(fmt::format("cuda:{}", number));
  const int count = cuda_devices();
  for (const std::string& device : devices)
    check(std::stoi(device.substr(5)) < count, "--gpus {}: there {} {}; `wick doctor` lists them", config.gpus,
          count == 1 ? "is" : "are", count_of(count, "CUDA device"));
  return devices;
}

RunResult train_on_ranks(TrainConfig config, const Checkpoint& model) {
  if (const std::optional<RankPlace> place = rank_from_environment()) {
    config.device = device_of(config, *place);
    const std::unique_ptr<Ranks> ranks = Ranks::connect(*place);
    return train(std::move(config), model, *ranks);
  }
  const std::vector<std::string> devices = devices_of(config);
  if (devices.size() > 1) return train_in_threads(config, model, devices);
  if (!devices.empty()) config.device = devices.front();
  return train(std::move(config), model);
}

}  // namespace wick
