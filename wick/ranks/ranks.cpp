#include "wick/ranks/ranks.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "wick/ranks/connections.h"
#include "wick/ranks/frame.h"
#include "wick/ranks/rendezvous.h"

namespace wick {
namespace {

constexpr size_t kChunk = kMostPayload / sizeof(float);  // values of a sum that are on their way at once

// A message of any length, as frames: its length, then its bytes.
void send_message(Connections& others, int rank, const std::string& message) {
  const uint64_t length = message.size();
  others.send(rank, to_bytes(FrameType::data, Call::exchange, &length, sizeof length));
  for (size_t at = 0; at < message.size(); at += kMostPayload) {
    const size_t bytes = std::min(kMostPayload, message.size() - at);
    others.send(rank, to_bytes(FrameType::data, Call::exchange, message.data() + at, bytes));
  }
}

std::string receive_message(Connections& others, int rank) {
  const std::string begin = others.receive(rank, Call::exchange);
  uint64_t length = 0;
  if (begin.size() != sizeof length) others.fail_other(rank, "sent a message without its length");
  std::memcpy(&length, begin.data(), sizeof length);
  std::string message;
  while (message.size() < length) message += others.receive(rank, Call::exchange);
  if (message.size() > length) others.fail_other(rank, "sent a message that is longer than its length");
  return message;
}

// The next piece of a sum or a broadcast, of which both ranks know the size.
std::string receive_piece(Connections& others, int rank, Call call, size_t bytes) {
  std::string piece = others.receive(rank, call);
  if (piece.size() != bytes)
    others.fail_other(rank,
                      fmt::format("sent {} bytes of {} where {} were expected: the ranks are not at the same call",
                                  piece.size(), name_of(call), bytes));
  return piece;
}

FrameBytes sum_frame(const float* values, size_t count) {
  return to_bytes(FrameType::data, Call::sum, values, count * sizeof(float));
}

void add(float* values, const std::string& other, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, other.data() + i * sizeof value, sizeof value);
    values[i] += value;
  }
}

// Rank 0 adds the values of all other ranks, and sends the sums to each.
void sum_of_all(Connections& others, int ranks, float* values, size_t count) {
  for (size_t at = 0; at < count; at += kChunk) {
    const size_t n = std::min(kChunk, count - at);
    for (int rank = 1; rank < ranks; ++rank)
      add(values + at, receive_piece(others, rank, Call::sum, n * sizeof(float)), n);
    const FrameBytes frame = sum_frame(values + at, n);
    for (int rank = 1; rank < ranks; ++rank) others.send(rank, frame);
  }
}

// Each other rank sends a few chunks ahead of the sums that it has, so that both directions are in use.
void sum_by_first(Connections& others, float* values, size_t count) {
  for (size_t at = 0, sent = 0; at < count; at += kChunk) {
    for (; sent < count && sent < at + kWindow * kChunk; sent += kChunk)
      others.send(0, sum_frame(values + sent, std::min(kChunk, count - sent)));
    const size_t bytes = std::min(kChunk, count - at) * sizeof(float);
    std::memcpy(values + at, receive_piece(others, 0, Call::sum, bytes).data(), bytes);
  }
}

}  // namespace

Ranks::Ranks() = default;

Ranks::Ranks(int rank, int count, std::unique_ptr<Connections> others)
    : rank_(rank), count_(count), others_(std::move(others)) {}

Ranks::~Ranks() = default;

std::unique_ptr<Ranks> Ranks::connect(const RankPlace& place) {
  if (place.count == 1) return std::make_unique<Ranks>();
  auto others = std::make_unique<Connections>(place.rank, rendezvous(place), place.silence);
  return std::unique_ptr<Ranks>(new Ranks(place.rank, place.count, std::move(others)));
}

std::vector<std::unique_ptr<Ranks>> Ranks::of_threads(int count, std::chrono::milliseconds silence) {
  std::vector<std::unique_ptr<Ranks>> all(static_cast<size_t>(count));
  std::vector<Peer> peers;  // rank 0's
  for (int rank = 1; rank < count; ++rank) {
    int pair[2];
    wick::check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "cannot connect {} ranks: {}", count,
                std::strerror(errno));
    std::vector<Peer> first;
    first.push_back({0, host_name(), Socket(pair[0])});
    peers.push_back({rank, host_name(), Socket(pair[1])});
    all[size_t(rank)].reset(new Ranks(rank, count, std::make_unique<Connections>(rank, std::move(first), silence)));
  }
  all[0] = std::make_unique<Ranks>();
  if (count > 1) all[0].reset(new Ranks(0, count, std::make_unique<Connections>(0, std::move(peers), silence)));
  for (const std::unique_ptr<Ranks>& one : all) one->are_threads_ = true;
  return all;
}

std::vector<std::string> Ranks::exchange(const std::string& message) {
  if (!others_) return {message};
  std::vector<std::string> all(static_cast<size_t>(count_));
  if (!is_first()) {
    send_message(*others_, 0, message);
    for (std::string& one : all) one = receive_message(*others_, 0);
    return all;
  }
  all[0] = message;
  for (int rank = 1; rank < count_; ++rank) all[size_t(rank)] = receive_message(*others_, rank);
  for (int rank = 1; rank < count_; ++rank)
    for (const std::string& one : all) send_message(*others_, rank, one);
  return all;
}

void Ranks::sum(float* values, size_t count) {
  check();
  if (!others_) return;
  if (is_first())
    sum_of_all(*others_, count_, values, count);
  else
    sum_by_first(*others_, values, count);
}

void Ranks::broadcast(void* data, size_t bytes) {
  check();
  for (size_t at = 0; others_ && at < bytes; at += kMostPayload) {
    const size_t n = std::min(kMostPayload, bytes - at);
    char* piece = static_cast<char*>(data) + at;
    if (is_first()) {
      const FrameBytes frame = to_bytes(FrameType::data, Call::broadcast, piece, n);
      for (int rank = 1; rank < count_; ++rank) others_->send(rank, frame);
    } else {
      std::memcpy(piece, receive_piece(*others_, 0, Call::broadcast, n).data(), n);
    }
  }
}

void Ranks::fetch(void* data, size_t bytes, int from) {
  check();
  if (from == 0 || (!is_first() && rank_ != from)) return;
  for (size_t at = 0; at < bytes; at += kMostPayload) {
    const size_t n = std::min(kMostPayload, bytes - at);
    char* piece = static_cast<char*>(data) + at;
    if (is_first())
      std::memcpy(piece, receive_piece(*others_, from, Call::fetch, n).data(), n);
    else
      others_->send(0, to_bytes(FrameType::data, Call::fetch, piece, n));
  }
}

void Ranks::barrier() { exchange(""); }

void Ranks::fail(const std::string& cause) noexcept {
  if (!others_) return;
  try {
    others_->fail(cause);
  } catch (const std::exception&) {  // no memory to tell it: every other rank will notice that this rank is gone
  }
}

void Ranks::check() const {
  if (const auto line = failure()) throw RankError(*line);
}

std::optional<std::string> Ranks::failure() const { return others_ ? others_->failure() : std::nullopt; }

void Ranks::on_failure(std::function<void(const std::string& failure)> callback) {
  if (others_) others_->on_failure(std::move(callback));
}

}  // namespace wick
