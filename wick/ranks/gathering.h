// Rank 0's part of the rendezvous.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "wick/ranks/greeting.h"
#include "wick/ranks/id_file.h"
#include "wick/ranks/rendezvous.h"

namespace wick {

class Gathering {
 public:
  explicit Gathering(const RankPlace& place);
  std::vector<Peer> wait_for_all();

 private:
  using Clock = std::chrono::steady_clock;

  // A connection that has not yet said which rank it is, or has been refused and is to read why.
  struct Visitor {
    Socket socket;
    Clock::time_point until;
    std::string heard;
    bool refused = false, done = false;
  };

  void wait_for_news(Clock::time_point deadline) const;
  void accept_visitors();
  bool hear(Visitor& visitor);
  bool answer(Visitor& visitor);
  std::optional<std::string> objection_to(const Hello& hello) const;
  void refuse(Visitor& visitor, const std::string& why);
  void check_who_came();
  std::string who_is_missing() const;
  void tell_all(Verdict verdict, const std::string& text) const;
  [[noreturn]] void give_up(const std::string& why) const;

  const RankPlace place_;
  Socket listening_;
  std::string where_;  // host:port
  std::optional<IdFile> file_;
  std::vector<Peer> came_;  // by rank; rank 0's and those of ranks that are awaited have no socket
  int awaited_;
  std::vector<Visitor> visitors_;
  std::string refusal_;  // the last one
};

}  // namespace wick
