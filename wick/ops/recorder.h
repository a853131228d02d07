// Computations that come again and again on tensors of the same shapes. Where the backend can, they are captured: the
// first time, each is computed call by call; the second time it is recorded; from then on its record is replayed on
// fixed buffers. The bits are the same.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "wick/backend/backend.h"
#include "wick/core/named_tensors.h"

namespace wick {

class Recorder {
 public:
  explicit Recorder(Backend& backend, bool records = true) : backend_(backend), records_(records) {}

  // Enqueues body(inputs). Whatever else it reads or writes has to lie where it lay when that computation was recorded;
  // what it allocates is free again behind it. `what` tells apart computations on inputs of the same shapes. With an
  // input on another memory nothing is recorded.
  using Body = std::function<void(const NamedTensors& inputs)>;
  void run(const std::string& what, const NamedTensors& inputs, const Body& body);

 private:
  struct Recorded {
    int64_t seen = 0, last_used = 0;
    NamedTensors buffers;
    std::unique_ptr<Replay> replay;
  };

  Recorded& recorded(const std::string& key);

  Backend& backend_;
  bool records_;
  std::map<std::string, Recorded> recorded_;
  int64_t runs_ = 0;
};

// " NAME SHAPE" of each.
std::string shapes_of(const NamedTensors& tensors);

}  // namespace wick
