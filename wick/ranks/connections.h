// The connections of a rank, and the thread that watches them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "wick/ranks/frame.h"
#include "wick/ranks/rendezvous.h"

namespace wick {

// Frames of data that may be on their way to one rank, which bounds the memory of both.
constexpr int kWindow = 4;

// The watching thread alone reads and writes sockets; calls leave frames to it and wait for frames and failures.
class Connections {
 public:
  Connections(int own_rank, std::vector<Peer> peers, std::chrono::milliseconds silence);
  ~Connections();  // says goodbye
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // Sends a frame of data to a rank, or takes its next one's payload. Throw RankError.
  void send(int rank, FrameBytes frame);
  std::string receive(int rank, Call call);
  // Ends the run since another rank is not where this one is. Throws RankError.
  [[noreturn]] void fail_other(int rank, const std::string& cause);

  void fail(const std::string& cause);
  std::optional<std::string> failure() const;
  void on_failure(std::function<void(const std::string&)> callback);

 private:
  using Clock = std::chrono::steady_clock;

  struct Connection {
    int rank;
    std::string host;

    // The watching thread's.
    Socket socket;
    FrameReader reader;
    size_t written = 0;  // bytes of `writing`
    Clock::time_point heard, spoke;
    bool sending_ended = false;

    // Guarded by mutex_.
    std::deque<FrameBytes> out;
    FrameBytes writing;  // taken out of `out`; set by the watching thread
    std::deque<Frame> in;
    int untaken = 0;      // frames of data that were sent and not yet taken
    bool ended = false;   // it said goodbye
    bool closed = false;  // the socket is
  };

  void watch();
  void wait_for_news(bool stopping);
  void read(Connection& from);
  void handle(Connection& from, Frame frame);
  void close(Connection& one, const char* cause);
  void excuse_own_absence();
  void look_after(Connection& one, bool stopping);
  void write(Connection& to);
  bool take_next(Connection& to);
  void call_back();
  bool all_closed() const;

  Connection& connection(int rank) { return connections_[own_rank_ == 0 ? size_t(rank - 1) : 0]; }
  std::string line_of(const Connection& about, const std::string& cause) const;
  // With mutex_ held. The cause's source knows already.
  void set_failure(const std::string& line, const Connection* source);
  void throw_failure() const;
  void wake() const;
  bool has_left(const Connection& one) const { return one.closed || (one.out.empty() && !one.writing); }

  const int own_rank_;
  const std::chrono::milliseconds silence_;
  std::vector<Connection> connections_;
  int news_;  // an eventfd, which wakes the watching thread

  Clock::time_point last_turn_;  // of the watching thread

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> failure_;
  bool own_failure_ = false, stopping_ = false;

  std::mutex callback_mutex_;  // held while the callback runs
  std::function<void(const std::string&)> callback_;
  bool called_back_ = false;

  std::thread watching_;
};

}  // namespace wick
