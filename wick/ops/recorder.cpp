#include "wick/ops/recorder.h"

#include <fmt/format.h>

#include <algorithm>

#include "wick/ops/shape.h"

namespace wick {
namespace {

// More computations than this, and the one that was not used for longest is forgotten.
constexpr size_t kMostRecorded = 32;

bool all_in(const Memory& memory, const NamedTensors& tensors) {
  return std::ranges::all_of(tensors, [&](const NamedTensor& t) { return &t.value.memory() == &memory; });
}

}  // namespace

std::string shapes_of(const NamedTensors& tensors) {
  std::string shapes;
  for (const auto& [name, value] : tensors) shapes += fmt::format(" {} {}", name, value.shape());
  return shapes;
}

void Recorder::run(const std::string& what, const NamedTensors& inputs, const Body& body) {
  const auto compute = [&](const NamedTensors& on) {
    const Arena arena(backend_.memory());  // its allocations lie apart from tensors that outlive it
    body(on);
  };
  if (!records_ || !all_in(backend_.memory(), inputs)) return compute(inputs);
  Recorded& it = recorded(what + shapes_of(inputs));
  if (it.seen++ == 0) return compute(inputs);  // kernels are chosen and libraries set up before anything is recorded
  if (!it.replay) {
    for (const auto& [name, value] : inputs) it.buffers.add(name, clone(value));
    it.replay = backend_.capture([&] { compute(it.buffers); });
    records_ = it.replay != nullptr;
    if (!records_) {  // this backend never will
      recorded_.clear();
      return compute(inputs);
    }
  } else {
    for (const auto& [name, value] : inputs) backend_.copy(it.buffers[name], value);
  }
  it.replay->run();
}

Recorder::Recorded& Recorder::recorded(const std::string& key) {
  if (recorded_.size() >= kMostRecorded && !recorded_.contains(key))
    recorded_.erase(std::ranges::min_element(recorded_, {}, [](const auto& named) { return named.second.last_used; }));
  Recorded& it = recorded_[key];
  it.last_used = ++runs_;
  return it;
}

}  // namespace wick
