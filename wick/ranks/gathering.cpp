#include "wick/ranks/gathering.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "wick/core/error.h"

namespace wick {
namespace {

// For a visitor to say which rank it is. A rank does so at once; a port scanner never.
constexpr std::chrono::seconds kPatience{10};
constexpr size_t kMostVisitors = 256;

void send_answer(const Socket& socket, Verdict verdict, const std::string& text) {
  Answer answer{};
  std::copy(std::begin(kAnswerMagic), std::end(kAnswerMagic), answer.magic);
  answer.verdict = verdict;
  put_text(answer.text, text);
  socket.send(&answer, sizeof answer);  // the first bytes of a connection always find room
}

Hello hello_of(const std::string& heard) {
  Hello hello{};
  std::memcpy(&hello, heard.data(), std::min(heard.size(), sizeof hello));
  return hello;
}

bool may_be_hello(const std::string& heard) {
  return std::equal(heard.begin(), heard.begin() + ptrdiff_t(std::min(heard.size(), sizeof kHelloMagic)), kHelloMagic);
}

// "rank 1, rank 2 and rank 5"
std::string enumerated(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  const size_t named = ranks.size() > kMost + 1 ? kMost : ranks.size();
  std::string text;
  for (size_t i = 0; i < named; ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + fmt::format("rank {}", ranks[i]);
  return named < ranks.size() ? text + fmt::format(" and {} more", ranks.size() - named) : text;
}

}  // namespace

Gathering::Gathering(const RankPlace& place)
    : place_(place),
      listening_(listen_on(place.id_file.empty() ? place.address : "", place.port)),
      where_(host_and_port(place.address.empty() ? host_name() : place.address, port_of(listening_))),
      came_(size_t(place.count)),
      awaited_(place.count - 1) {
  if (!place.id_file.empty()) file_.emplace(place.id_file, port_of(listening_));
}

std::vector<Peer> Gathering::wait_for_all() {
  const auto deadline = Clock::now() + place_.timeout;
  while (awaited_ > 0) {
    if (Clock::now() >= deadline) give_up(who_is_missing());
    wait_for_news(deadline);
    accept_visitors();
    for (Visitor& visitor : visitors_) visitor.done = !hear(visitor);
    std::erase_if(visitors_, [](const Visitor& visitor) { return visitor.done; });
    check_who_came();
  }
  tell_all(Verdict::complete, "");
  came_.erase(came_.begin());
  return std::move(came_);
}

void Gathering::wait_for_news(Clock::time_point deadline) const {
  std::vector<pollfd> all{{listening_.fd(), POLLIN, 0}};
  for (const Visitor& visitor : visitors_) all.push_back({visitor.socket.fd(), POLLIN, 0});
  for (const Peer& peer : came_) all.push_back({peer.socket.fd(), POLLIN, 0});  // one without a socket is passed over
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  ::poll(all.data(), all.size(), int(std::clamp<int64_t>(left.count(), 0, 500)));
}

void Gathering::accept_visitors() {
  while (Socket socket{::accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC)}) {
    if (visitors_.size() == kMostVisitors) visitors_.erase(visitors_.begin());
    visitors_.push_back({std::move(socket), Clock::now() + kPatience, {}});
  }
}

// False once the visitor is to be forgotten.
bool Gathering::hear(Visitor& visitor) {
  if (Clock::now() > visitor.until) return false;
  char bytes[sizeof(Hello) + 1];
  const size_t have = visitor.heard.size();
  const size_t next = have < kVersioned ? kVersioned : have < sizeof(Hello) ? sizeof(Hello) : sizeof(Hello) + 1;
  const ptrdiff_t n = visitor.socket.receive(bytes, visitor.refused ? sizeof bytes : next - have);
  if (n <= 0) return n == 0;
  if (visitor.refused) return true;
  visitor.heard.append(bytes, size_t(n));
  if (!may_be_hello(visitor.heard)) return false;
  return visitor.heard.size() < next || answer(visitor);
}

// Called where the bytes so far end with the version, the Hello or the byte after it.
bool Gathering::answer(Visitor& visitor) {
  const Hello hello = hello_of(visitor.heard);
  if (hello.version != kGreetingVersion) {
    refuse(visitor, fmt::format("rank 0 on {} is of another version of Wick (of the ranks' protocol it has version {}, "
                                "and found version {}): run the same program everywhere",
                                host_name(), kGreetingVersion, hello.version));
    return true;
  }
  if (visitor.heard.size() < sizeof hello) return true;
  if (file_ && hello.run != file_->run()) {
    send_answer(visitor.socket, Verdict::stranger, "");
    return false;
  }
  if (const auto why = objection_to(hello)) {
    refuse(visitor, *why);
    return true;
  }
  if (visitor.heard.size() == sizeof hello) {
    send_answer(visitor.socket, Verdict::noted, host_name());
    return true;
  }
  came_[hello.rank] = {int(hello.rank), text_of(hello.host), std::move(visitor.socket)};
  --awaited_;
  return false;
}

std::optional<std::string> Gathering::objection_to(const Hello& hello) const {
  const std::string who = fmt::format("rank {} of {} on {}", hello.rank, hello.count, text_of(hello.host));
  if (hello.count != uint32_t(place_.count) || hello.rank == 0 || hello.rank >= hello.count)
    return fmt::format(
        "{} is none of the {} ranks that rank 0 on {} awaits at {}: all processes of a run must count "
        "the same ranks",
        who, place_.count, host_name(), where_);
  if (const Peer& earlier = came_[hello.rank]; earlier.socket)
    return fmt::format(
        "{} is a second one: rank {} has already come to {}, from {}; each process needs a rank of its "
        "own",
        who, hello.rank, where_, earlier.host);
  return std::nullopt;
}

// The visitor is kept until it has read this and closed: closing earlier may reset the connection and drop the answer.
void Gathering::refuse(Visitor& visitor, const std::string& why) {
  refusal_ = why;
  send_answer(visitor.socket, Verdict::refused, why);
  visitor.socket.end_sending();
  visitor.refused = true;
}

// Ranks that wait say nothing, so that nothing but its end can be read of one.
void Gathering::check_who_came() {
  for (Peer& peer : came_) {
    char byte;
    if (!peer.socket || peer.socket.receive(&byte, 1) == 0) continue;
    peer.socket.close();
    give_up(fmt::format("rank {} on {}: killed or cut off before all had come: its connection closed", peer.rank,
                        peer.host));
  }
}

std::string Gathering::who_is_missing() const {
  std::vector<int> missing;
  for (int rank = 1; rank < place_.count; ++rank)
    if (!came_[size_t(rank)].socket) missing.push_back(rank);
  const std::string advice =
      refusal_.empty() ? "are they running, and can they reach this port?" : "refused was: " + refusal_;
  return fmt::format("{} of {} did not come to {} within {} s (WICK_RANK_TIMEOUT); {}", enumerated(missing),
                     place_.count, where_, place_.timeout.count(), advice);
}

void Gathering::tell_all(Verdict verdict, const std::string& text) const {
  for (const Peer& peer : came_)
    if (peer.socket) send_answer(peer.socket, verdict, text);
}

void Gathering::give_up(const std::string& why) const {
  tell_all(Verdict::refused, why);
  fail("{}", why);
}

}  // namespace wick
