#include "wick/pipelines/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>
#include <thread>

#include "wick/backend/registry.h"
#include "wick/io/count.h"

namespace wick {
namespace {

constexpr int kMostDevices = 1024;  // of a machine; more are taken for a slip of the keyboard

int cuda_devices() {
  const BackendReport report = cuda_report(/*detailed=*/false);
  check(report.problem.empty(), "--gpus: {}; `wick doctor` shows what was found", report.problem);
  return int(report.devices.size());
}

int number_in(std::string_view text, const std::string& whole) {
  int number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  check_usage(error == std::errc{} && end == text.data() + text.size() && number >= 0 && number <= kMostDevices,
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
  for (size_t begin = 0; begin <= gpus.size();) {
    const size_t end = std::min(gpus.find(',', begin), gpus.size());
    const int number = number_in(std::string_view(gpus).substr(begin, end - begin), gpus);
    check_usage(std::ranges::count(numbers, number) == 0, "--gpus {}: device {} is there twice", gpus, number);
    numbers.push_back(number);
    begin = end + 1;
  }
  return numbers;
}

}  // namespace

std::vector<std::string> asked_devices(const std::string& gpus) {
  std::vector<std::string> devices;
  if (gpus.empty()) return devices;
  for (const int number : numbers_of(gpus)) devices.push_back(fmt::format("cuda:{}", number));
  return devices;
}

std::vector<std::string> devices_of(const std::string& gpus) {
  const std::vector<std::string> devices = asked_devices(gpus);
  if (devices.empty()) return devices;
  const int count = cuda_devices();
  for (const int number : numbers_of(gpus))
    check(number < count, "--gpus {}: there {} {}; `wick doctor` lists them", gpus, count == 1 ? "is" : "are",
          count_of(count, "CUDA device"));
  return devices;
}

bool reach_each_other(const std::vector<std::string>& devices) {
  if (devices.size() < 2) return false;
  const std::vector<LinkReport> links = cuda_report().links;
  const auto are_linked = [&](const std::string& a, const std::string& b) {
    return std::ranges::any_of(links, [&](const LinkReport& link) {
      return link.is_direct && fmt::format("cuda:{}", link.from) == a && fmt::format("cuda:{}", link.to) == b;
    });
  };
  for (const std::string& a : devices)
    for (const std::string& b : devices)
      if (a != b && !are_linked(a, b) && !are_linked(b, a)) return false;
  return true;
}

void on_threads(size_t count, const std::function<void(size_t)>& f) {
  std::vector<std::exception_ptr> errors(count);
  const auto run = [&](size_t i) {
    try {
      f(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < count; ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace wick
