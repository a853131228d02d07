#include "wick/ranks/connections.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "wick/core/error.h"
#include "wick/ranks/ranks.h"

namespace wick {
namespace {

constexpr std::chrono::milliseconds kLeaving{500};  // for the news of a failure to leave this process
constexpr size_t kMostCause = 4096;                 // bytes

// Starts a thread that takes no signals: they are the main thread's, whose handlers know its stack.
template <class Body>
std::thread start_without_signals(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

std::string in_seconds(std::chrono::milliseconds time) { return fmt::format("{:g} s", double(time.count()) / 1000); }

}  // namespace

Connections::Connections(int own_rank, std::vector<Peer> peers, std::chrono::milliseconds silence)
    : own_rank_(own_rank),
      silence_(silence),
      connections_(peers.size()),
      news_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  check(news_ >= 0, "cannot watch the other ranks: {}", std::strerror(errno));
  for (size_t i = 0; i < peers.size(); ++i) {
    Connection& one = connections_[i];
    one.rank = peers[i].rank;
    one.host = std::move(peers[i].host);
    one.socket = std::move(peers[i].socket);
    one.heard = one.spoke = Clock::now();
  }
  last_turn_ = Clock::now();
  watching_ = start_without_signals([this] { watch(); });
}

Connections::~Connections() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Connection& one : connections_) one.out.push_back(to_bytes(FrameType::goodbye));
  }
  wake();
  watching_.join();
  ::close(news_);
}

void Connections::send(int rank, FrameBytes frame) {
  std::unique_lock lock(mutex_);
  Connection& to = connection(rank);
  changed_.wait(lock, [&] { return failure_ || to.ended || to.untaken < kWindow; });
  if (to.ended) set_failure(line_of(to, "has ended"), &to);
  throw_failure();
  ++to.untaken;
  to.out.push_back(std::move(frame));
  wake();
}

std::string Connections::receive(int rank, Call call) {
  std::unique_lock lock(mutex_);
  Connection& from = connection(rank);
  changed_.wait(lock, [&] { return failure_ || from.ended || !from.in.empty(); });
  if (from.in.empty()) set_failure(line_of(from, "has ended"), &from);
  throw_failure();
  Frame frame = std::move(from.in.front());
  from.in.pop_front();
  if (frame.call != call) {
    set_failure(
        line_of(from, fmt::format("is in {} while rank {} is in {}", name_of(frame.call), own_rank_, name_of(call))),
        nullptr);
    throw_failure();
  }
  if (!from.ended) from.out.push_back(to_bytes(FrameType::taken));
  wake();
  return std::move(frame.payload);
}

void Connections::fail_other(int rank, const std::string& cause) {
  std::lock_guard lock(mutex_);
  set_failure(line_of(connection(rank), cause), nullptr);
  throw RankError(*failure_);
}

void Connections::fail(const std::string& cause) {
  std::unique_lock lock(mutex_);
  if (!failure_) own_failure_ = true;
  std::string line = fmt::format("rank {} on {}: {}", own_rank_, host_name(), cause);
  std::replace(line.begin(), line.end(), '\n', ' ');
  set_failure(line, nullptr);
  changed_.wait_for(lock, kLeaving, [&] {
    return std::all_of(connections_.begin(), connections_.end(), [&](const Connection& one) { return has_left(one); });
  });
}

std::optional<std::string> Connections::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Connections::on_failure(std::function<void(const std::string&)> callback) {
  {
    std::lock_guard lock(callback_mutex_);
    callback_ = std::move(callback);
  }
  wake();
}

void Connections::watch() {
  bool stopping = false;
  Clock::time_point deadline = Clock::time_point::max();
  do {
    wait_for_news(stopping);
    {
      std::lock_guard lock(mutex_);
      if (stopping_ && !stopping)
        deadline = Clock::now() + (failure_ ? std::min<Clock::duration>(kLeaving, silence_) : silence_);
      stopping = stopping_;
    }
    for (Connection& one : connections_) {
      const uint64_t before = one.reader.total();
      read(one);
      if (one.reader.total() != before) one.heard = Clock::now();
    }
    excuse_own_absence();
    for (Connection& one : connections_) look_after(one, stopping);
    call_back();
  } while (!stopping || (!all_closed() && Clock::now() < deadline));
}

void Connections::wait_for_news(bool stopping) {
  std::vector<pollfd> all{{news_, POLLIN, 0}};
  {
    std::lock_guard lock(mutex_);
    for (const Connection& one : connections_)  // poll passes over those that are closed
      all.push_back({one.socket.fd(), short(POLLIN | (has_left(one) ? 0 : POLLOUT)), 0});
  }
  const auto tick = stopping ? std::chrono::milliseconds(20) : silence_ / 10;
  ::poll(all.data(), all.size(), int(std::clamp<int64_t>(tick.count(), 1, 1000)));
  uint64_t ignored;
  [[maybe_unused]] const ssize_t n = ::read(news_, &ignored, sizeof ignored);
}

void Connections::read(Connection& from) {
  while (from.socket) {
    Frame frame;
    switch (from.reader.next(from.socket, &frame)) {
      case FrameReader::Found::frame:
        handle(from, std::move(frame));
        break;
      case FrameReader::Found::nothing_yet:
        return;
      case FrameReader::Found::end:
        return close(from, "killed or cut off: its connection closed");
      case FrameReader::Found::nonsense:
        return close(from, "sent what is no message of a rank");
    }
  }
}

void Connections::handle(Connection& from, Frame frame) {
  std::lock_guard lock(mutex_);
  switch (frame.type) {
    case FrameType::heartbeat:
      return;
    case FrameType::data:
      from.in.push_back(std::move(frame));
      break;
    case FrameType::taken:
      --from.untaken;
      break;
    case FrameType::failure:
      set_failure(frame.payload, &from);
      break;
    case FrameType::goodbye:
      from.ended = true;
      break;
  }
  changed_.notify_all();
}

void Connections::close(Connection& one, const char* cause) {
  one.socket.close();
  std::lock_guard lock(mutex_);
  one.closed = true;
  if (!one.ended && !stopping_) set_failure(line_of(one, cause), &one);
  changed_.notify_all();
}

// Where this process was stopped for a while, others may have been too (Ctrl-Z): they get their time anew.
void Connections::excuse_own_absence() {
  const auto now = Clock::now();
  if (now - std::exchange(last_turn_, now) < silence_ / 2) return;
  for (Connection& one : connections_) one.heard = now;
}

// Finds out whether the rank is lost, and writes the frames that are due.
void Connections::look_after(Connection& one, bool stopping) {
  if (!one.socket) return;
  const auto now = Clock::now();
  {
    std::lock_guard lock(mutex_);
    if (now - one.heard > silence_ && !one.ended && !stopping)
      set_failure(line_of(one, "not heard of for " + in_seconds(silence_)), nullptr);
    if (one.ended) one.out.clear();  // it reads nothing more
    const bool is_due = now - one.spoke >= silence_ / 5 && has_left(one);
    if (is_due && !one.ended && !stopping) one.out.push_back(to_bytes(FrameType::heartbeat));
  }
  write(one);
  // The answer to a goodbye is the end of sending: then both ends close with nothing unread. Unread bytes would make
  // the kernel reset the connection, and drop frames that are on their way.
  std::lock_guard lock(mutex_);
  if ((one.ended || (stopping && has_left(one))) && !std::exchange(one.sending_ended, true)) one.socket.end_sending();
}

void Connections::write(Connection& to) {
  while (take_next(to)) {
    const ptrdiff_t n = to.socket.send(to.writing->data() + to.written, to.writing->size() - to.written);
    if (n == 0) return;
    to.spoke = Clock::now();
    to.written += n < 0 ? to.writing->size() : size_t(n);  // a broken connection is noticed where it is read
  }
}

// Puts the next frame into `writing` unless one is there that is not yet written. False if there is none.
bool Connections::take_next(Connection& to) {
  if (to.writing && to.written < to.writing->size()) return true;
  std::lock_guard lock(mutex_);
  to.written = 0;
  to.writing = nullptr;
  if (to.out.empty()) {
    changed_.notify_all();
    return false;
  }
  to.writing = std::move(to.out.front());
  to.out.pop_front();
  return true;
}

void Connections::call_back() {
  std::lock_guard calling(callback_mutex_);
  if (!callback_ || called_back_) return;
  std::string line;
  {
    std::lock_guard lock(mutex_);
    if (!failure_ || own_failure_) return;
    line = *failure_;
  }
  called_back_ = true;
  callback_(line);
}

bool Connections::all_closed() const {
  return std::none_of(connections_.begin(), connections_.end(), [](const Connection& one) { return bool(one.socket); });
}

std::string Connections::line_of(const Connection& about, const std::string& cause) const {
  return fmt::format("rank {} on {}: {}", about.rank, about.host, cause);
}

void Connections::set_failure(const std::string& line, const Connection* source) {
  if (failure_) return;
  const FrameBytes frame = to_bytes(FrameType::failure, Call::none, line.data(), std::min(line.size(), kMostCause));
  failure_ = line.substr(0, kMostCause);
  for (Connection& one : connections_) {
    one.out.clear();
    if (&one != source && !one.ended) one.out.push_back(frame);
  }
  if (stopping_)
    for (Connection& one : connections_) one.out.push_back(to_bytes(FrameType::goodbye));
  changed_.notify_all();
  wake();
}

void Connections::throw_failure() const {
  if (failure_) throw RankError(*failure_);
}

void Connections::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(news_, &one, sizeof one);
}

}  // namespace wick
