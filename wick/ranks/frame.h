// The messages of ranks to each other once all have come: frames of a header and a payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "wick/ranks/socket.h"

namespace wick {

enum class FrameType : uint8_t {
  heartbeat,  // its sender lives
  data,       // a piece of a collective call
  taken,      // one frame of data was taken by the call for which it was: room for another one
  failure,    // the line that tells it
  goodbye,    // the sender has ended and sends nothing more
};

// The collective call to which data belong, by which ranks notice that they have come apart.
enum class Call : uint8_t { none, exchange, sum, broadcast, fetch };
const char* name_of(Call call);

constexpr size_t kMostPayload = size_t{1} << 20;  // bytes

struct Frame {
  FrameType type = FrameType::heartbeat;
  Call call = Call::none;
  std::string payload;
};

// The bytes of a frame, which may be on their way to several ranks.
using FrameBytes = std::shared_ptr<const std::string>;
FrameBytes to_bytes(FrameType type, Call call = Call::none, const void* payload = nullptr, size_t bytes = 0);

// Puts frames together of the bytes that have arrived.
class FrameReader {
 public:
  enum class Found { frame, nothing_yet, end, nonsense };
  Found next(const Socket& socket, Frame* frame);
  uint64_t total() const { return total_; }  // bytes so far, those of a frame that is not yet whole too

 private:
  struct Header {
    FrameType type;
    Call call;
    uint16_t unused;
    uint32_t payload;  // bytes
  };
  friend FrameBytes to_bytes(FrameType, Call, const void*, size_t);
  bool begin_payload();

  Header header_{};
  size_t arrived_ = 0;  // bytes of header and payload
  uint64_t total_ = 0;
  Frame frame_;
};

}  // namespace wick
