#include "wick/ranks/frame.h"

#include <utility>

namespace wick {

const char* name_of(Call call) {
  switch (call) {
    case Call::exchange:
      return "an exchange";
    case Call::sum:
      return "a sum";
    case Call::broadcast:
      return "a broadcast";
    case Call::fetch:
      return "a fetch";
    default:
      return "no call";
  }
}

FrameBytes to_bytes(FrameType type, Call call, const void* payload, size_t bytes) {
  const FrameReader::Header header{type, call, 0, uint32_t(bytes)};
  auto frame = std::make_shared<std::string>();
  frame->reserve(sizeof header + bytes);
  frame->append(reinterpret_cast<const char*>(&header), sizeof header);
  if (bytes > 0) frame->append(static_cast<const char*>(payload), bytes);
  return frame;
}

FrameReader::Found FrameReader::next(const Socket& socket, Frame* frame) {
  while (true) {
    const bool in_header = arrived_ < sizeof(Header);
    char* to =
        in_header ? reinterpret_cast<char*>(&header_) + arrived_ : frame_.payload.data() + (arrived_ - sizeof(Header));
    const size_t whole = sizeof(Header) + (in_header ? 0 : header_.payload);
    const ptrdiff_t n = arrived_ < whole ? socket.receive(to, whole - arrived_) : 0;
    if (n < 0) return Found::end;
    if (n == 0 && arrived_ < whole) return Found::nothing_yet;
    arrived_ += size_t(n);
    total_ += size_t(n);
    if (in_header && arrived_ == sizeof(Header) && !begin_payload()) return Found::nonsense;
    if (arrived_ < sizeof(Header) || arrived_ < sizeof(Header) + header_.payload) continue;
    *frame = std::exchange(frame_, {});
    arrived_ = 0;
    return Found::frame;
  }
}

bool FrameReader::begin_payload() {
  if (header_.type > FrameType::goodbye || header_.call > Call::fetch || header_.payload > kMostPayload) return false;
  frame_ = {header_.type, header_.call, std::string(header_.payload, '\0')};
  return true;
}

}  // namespace wick
