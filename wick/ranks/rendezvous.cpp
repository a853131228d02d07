#include "wick/ranks/rendezvous.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "wick/core/error.h"
#include "wick/ranks/gathering.h"
#include "wick/ranks/greeting.h"
#include "wick/ranks/id_file.h"

namespace wick {
namespace {

using Clock = std::chrono::steady_clock;

// For one try: the file may be an old one that leads elsewhere.
constexpr std::chrono::seconds kTry{2};

// Looks for rank 0 until it has answered.
class Search {
 public:
  explicit Search(const RankPlace& place) : place_(place), deadline_(Clock::now() + place.timeout) {}

  Peer find() {
    while (true) {
      for (const auto& [host, port] : look_up()) {
        if (auto first = try_at(host, port)) return std::move(*first);
      }
      check(Clock::now() < deadline_, "rank 0 did not come at {} within {} s (WICK_RANK_TIMEOUT): {}", where(),
            place_.timeout.count(), why_not_);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

 private:
  std::string where() const {
    return place_.id_file.empty() ? host_and_port(place_.address, place_.port) : place_.id_file + " (WICK_ID_FILE)";
  }

  std::vector<Announcement::Place> look_up() {
    if (place_.address == "localhost") return {{"127.0.0.1", place_.port}};  // where rank 0 listens then
    if (place_.id_file.empty()) return {{place_.address, place_.port}};
    try {
      Announcement found = read_id_file(place_.id_file);
      run_ = found.run;
      return std::move(found.places);
    } catch (const Error& error) {  // not yet written, or a file of something else, which rank 0 will replace
      why_not_ = error.what();
      return {};
    }
  }

  std::optional<Peer> try_at(const std::string& host, int port) {
    const auto until = place_.id_file.empty() ? deadline_ : std::min(deadline_, Clock::now() + kTry);
    std::string why;
    Socket socket = connect_to(host, port, until, &why);
    if (!socket) return not_there(host_and_port(host, port) + ": " + why);
    Hello hello{};
    std::copy(std::begin(kHelloMagic), std::end(kHelloMagic), hello.magic);
    hello.version = kGreetingVersion;
    hello.rank = uint32_t(place_.rank);
    hello.count = uint32_t(place_.count);
    hello.run = run_;
    put_text(hello.host, host_name());
    Answer answer{};
    socket.send(&hello, sizeof hello);  // the first bytes of a connection always find room
    const bool answered = socket.receive_all(&answer, sizeof answer, until) &&
                          std::equal(std::begin(kAnswerMagic), std::end(kAnswerMagic), answer.magic);
    if (answered && answer.verdict == Verdict::refused) throw Error(text_of(answer.text));
    if (answered && answer.verdict == Verdict::noted) return Peer{0, text_of(answer.text), std::move(socket)};
    return not_there(host_and_port(host, port) +
                     (answered ? " belongs to another run" : " does not answer as rank 0 does"));
  }

  // A try that the deadline ended tells less than one before it.
  std::nullopt_t not_there(const std::string& why) {
    if (why_not_.empty() || Clock::now() < deadline_) why_not_ = why;
    return std::nullopt;
  }

  const RankPlace& place_;
  const Clock::time_point deadline_;
  uint64_t run_ = 0;
  std::string why_not_;
};

// Rank 0's timeout may have begun later, and ends before this.
void wait_for_others(const Peer& first, const RankPlace& place) {
  const auto wait = place.timeout + std::chrono::seconds(10);
  const auto deadline = Clock::now() + wait;
  Answer answer{};
  const char ready = 1;
  first.socket.send(&ready, 1);
  if (!first.socket.receive_all(&answer, sizeof answer, deadline)) {
    check(Clock::now() < deadline, "rank 0 on {}: not heard of for {} s while it awaited other ranks", first.host,
          wait.count());
    fail("rank 0 on {}: killed or cut off before all had come: its connection closed", first.host);
  }
  if (answer.verdict != Verdict::complete) throw Error(text_of(answer.text));
}

}  // namespace

std::vector<Peer> rendezvous(const RankPlace& place) {
  if (place.rank == 0) return Gathering(place).wait_for_all();
  std::vector<Peer> peers;
  peers.push_back(Search(place).find());
  wait_for_others(peers.front(), place);
  return peers;
}

}  // namespace wick
