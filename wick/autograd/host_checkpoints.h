// Inputs of blocks that are computed twice, which wait for backward in host memory.
//
// While a block runs, the inputs of the one before it travel to the host; in backward they come back while the two
// behind theirs run. What others hold too stays on the device: to move it would free nothing. The last two blocks'
// inputs hardly leave, since backward begins there.
#pragma once

#include <memory>
#include <vector>

#include "wick/autograd/tape.h"
#include "wick/core/tensor.h"

namespace wick {

class HostCheckpoints final : public Mover {
 public:
  HostCheckpoints() = default;
  ~HostCheckpoints() override;
  HostCheckpoints(const HostCheckpoints&) = delete;
  HostCheckpoints& operator=(const HostCheckpoints&) = delete;

  void begin_pass();   // forgets what was kept
  void begin_block();  // of those that are computed twice, in forward
  // An input of the block that has begun; its number in the pass.
  size_t keep(const Tensor& x);
  Tensor take(size_t number);  // with x's identity, once for each number, the last blocks' first
  void rest() override;

 private:
  // An input of a block. Those of one number in several passes share their transfers, and their room on the host while
  // it suffices; captured steps know larger rooms that came before.
  struct Kept {
    size_t block = 0;
    Tensor device;  // none while it is on the host alone
    bool leaving = false, arriving = false;
    uint64_t id = 0;
    Shape shape;
    DType dtype = DType::f32;
    Tensor room;  // bytes on the host
    std::unique_ptr<Transfer> out, in;
  };

  void send(Kept& kept);
  void fetch(Kept& kept);
  void settle(Kept& kept);

  Memory* device_ = nullptr;  // once something is kept
  std::vector<Kept> kept_;
  std::vector<Tensor> outgrown_;  // rooms that were too small
  size_t count_ = 0;              // of kept_, in this pass
  size_t block_ = 0;              // the one that has begun, from 1
};

}  // namespace wick
