// How ranks come together, or do not, and other visitors of rank 0's port.
#include "wick/ranks/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "group.h"
#include "wick/ranks/greeting.h"
#include "wick/ranks/id_file.h"

namespace wick {
namespace {

constexpr auto kSoon = 20s;

std::string connect_as(const RankPlace& place) {
  return outcome_of([&] { return Ranks::connect(place)->barrier(), ""; });
}

std::vector<std::string> connect_all(const std::vector<RankPlace>& places) {
  std::vector<std::string> results(places.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < places.size(); ++i) threads.emplace_back([&, i] { results[i] = connect_as(places[i]); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

RankPlace at_port(int rank, int count, int port, const std::string& address = "127.0.0.1") {
  RankPlace place;
  place.rank = rank;
  place.count = count;
  place.address = address;
  place.port = port;
  place.timeout = kSoon;
  return place;
}

// Another program may take it before it is used, so that tests which need one try again.
int free_port() {
  const Socket socket = listen_on("127.0.0.1", 0);
  return port_of(socket);
}

void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) EXPECT_NE(text.find(part), text.npos) << text << "\nlacks " << part;
}

class RendezvousTest : public testing::Test {
 protected:
  RankPlace place(int rank, int count) const { return place_of(rank, count, folder_ / "id"); }

  // Where rank 0 listens, once its file is there.
  Announcement announcement() const {
    while (true) {
      try {
        return read_id_file(folder_ / "id");
      } catch (const Error&) {
        std::this_thread::sleep_for(5ms);
      }
    }
  }
  Socket connected() const {
    std::string why;
    Socket socket =
        connect_to("127.0.0.1", announcement().places.back().port, std::chrono::steady_clock::now() + 5s, &why);
    EXPECT_TRUE(socket) << why;
    return socket;
  }
  Hello hello(int rank, int count) const {
    Hello hello{};
    std::copy(std::begin(kHelloMagic), std::end(kHelloMagic), hello.magic);
    hello.version = kGreetingVersion;
    hello.rank = uint32_t(rank);
    hello.count = uint32_t(count);
    hello.run = announcement().run;
    put_text(hello.host, "host-b");
    return hello;
  }
  static Answer answer(const Socket& socket) {
    Answer answer{};
    EXPECT_TRUE(socket.receive_all(&answer, sizeof answer, std::chrono::steady_clock::now() + 5s));
    return answer;
  }
  static bool is_closed(const Socket& socket) {
    char byte;
    return !socket.receive_all(&byte, 1, std::chrono::steady_clock::now() + 5s) && socket.receive(&byte, 1) < 0;
  }

  TemporaryDirectory folder_;
};

TEST_F(RendezvousTest, ByAddress) {
  for (const char* address : {"127.0.0.1", "localhost", ""}) {
    const std::string name = *address ? address : host_name();
    for (int attempt = 0; attempt < 5; ++attempt) {
      const int port = free_port();
      const auto results =
          connect_all({at_port(2, 3, port, name), at_port(0, 3, port, name), at_port(1, 3, port, name)});
      if (results[1].find("is taken") != std::string::npos) continue;
      EXPECT_EQ(results, std::vector<std::string>(3)) << name;
      break;
    }
  }
}

TEST_F(RendezvousTest, ByFileWhichIsRemoved) {
  EXPECT_EQ(connect_all({place(1, 3), place(2, 3), place(0, 3)}), std::vector<std::string>(3));
  EXPECT_EQ(folder_.entries(), 0u);
}

// An old file may be of something else, or lead to a closed port, to a program that is silent or to another run.
TEST_F(RendezvousTest, ByFileInPlaceOfAnOldOne) {
  const Socket silent = listen_on("127.0.0.1", 0);
  const std::string title = "wick ranks 0123456789abcdef\n";
  for (const std::string& old : {std::string("nonsense\n"), title + "127.0.0.1:" + std::to_string(free_port()) + "\n",
                                 title + "127.0.0.1:" + std::to_string(port_of(silent)) + "\n"}) {
    write_plain(folder_ / "id", old);
    std::string results[2];
    std::thread other([&] { results[1] = connect_as(place(1, 2)); });
    std::this_thread::sleep_for(100ms);
    results[0] = connect_as(place(0, 2));
    other.join();
    EXPECT_EQ(results[0] + results[1], "") << old;
  }
}

TEST_F(RendezvousTest, AnotherRunsPortIsNotJoined) {
  std::thread first([&] { EXPECT_EQ(connect_as(place(0, 2)), ""); });
  std::string file = read_plain((announcement(), folder_ / "id"));
  file[12] = file[12] == '0' ? '1' : '0';
  write_plain(folder_ / "old", file);
  RankPlace lost = place_of(1, 2, folder_ / "old");
  lost.timeout = 1s;
  expect_parts(connect_as(lost), {"rank 0 did not come at ", "/old (WICK_ID_FILE) within 1 s (WICK_RANK_TIMEOUT)",
                                  "belongs to another run"});
  EXPECT_EQ(connect_as(place(1, 2)), "");
  first.join();
}

TEST_F(RendezvousTest, ThoseThatDoNotComeAreNamedOnAll) {
  RankPlace first = place(0, 5);
  first.timeout = 1s;
  const auto results = connect_all({first, place(1, 5), place(4, 5)});
  expect_parts(results[0],
               {"rank 2 and rank 3 of 5 did not come to " + host_name() + ":", " within 1 s (WICK_RANK_TIMEOUT); "});
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
  EXPECT_EQ(folder_.entries(), 0u);
}

TEST_F(RendezvousTest, RankZeroDoesNotCome) {
  RankPlace one = at_port(1, 2, free_port());
  RankPlace two = place(1, 2);
  one.timeout = two.timeout = 1s;
  const auto results = connect_all({one, two});
  expect_parts(results[0],
               {"rank 0 did not come at 127.0.0.1:" + std::to_string(one.port) + " within 1 s (WICK_RANK_TIMEOUT)",
                "Connection refused"});
  expect_parts(results[1], {"rank 0 did not come at ", "/id (WICK_ID_FILE) within 1 s", "No such file"});
}

TEST_F(RendezvousTest, ATakenPortNamesItsVariable) {
  const Socket taken = listen_on("127.0.0.1", 0);
  expect_parts(connect_as(at_port(0, 2, port_of(taken))),
               {"port " + std::to_string(port_of(taken)), "taken", "WICK_ID_PORT"});
}

TEST_F(RendezvousTest, ASecondOneAndOneThatCountsOtherwiseAreRefused) {
  std::string first;
  std::thread others([&] { first = connect_as(place(0, 3)); });
  std::thread rank1([&] { EXPECT_EQ(connect_as(place(1, 3)), ""); });
  const Socket before = connected();  // so that rank 1 has come, in all likelihood; else this test sees less
  std::this_thread::sleep_for(200ms);
  expect_parts(connect_as(place(1, 3)), {"rank 1 of 3 on " + host_name() + " is a second one", "already come"});
  expect_parts(connect_as(place(1, 4)), {"rank 1 of 4 on " + host_name() + " is none of the 3 ranks"});
  EXPECT_EQ(connect_as(place(2, 3)), "");
  others.join();
  rank1.join();
  EXPECT_EQ(first, "");
}

TEST_F(RendezvousTest, RefusalsAreToldToThoseThatWait) {
  RankPlace few = place(0, 2);
  few.timeout = 1s;
  const auto results = connect_all({few, place(2, 3)});
  expect_parts(results[0], {"rank 1 of 2 did not come", "refused was: rank 2 of 3 on "});
  expect_parts(results[1], {"rank 2 of 3 on ", " is none of the 2 ranks that rank 0 on "});
}

TEST_F(RendezvousTest, AnotherVersionIsRefused) {
  std::thread first([&] { EXPECT_EQ(connect_as(place(0, 2)), ""); });
  Hello other = hello(1, 2);
  other.version = 7;
  const Socket socket = connected();
  socket.send(&other, sizeof other);
  const Answer refusal = answer(socket);
  EXPECT_EQ(refusal.verdict, Verdict::refused);
  expect_parts(text_of(refusal.text), {"version 2", "found version 7", "run the same program"});
  EXPECT_TRUE(is_closed(socket));
  EXPECT_EQ(connect_as(place(1, 2)), "");
  first.join();
}

TEST_F(RendezvousTest, WhatIsNoRankIsIgnored) {
  std::thread first([&] { EXPECT_EQ(connect_as(place(0, 2)), ""); });
  const Socket silent = connected(), garbage = connected(), half = connected(), long_garbage = connected();
  garbage.send("GET / HTTP/1.1\r\n\r\n", 18);
  half.send("wickra", 6);
  const std::string endless(1 << 16, 'w');
  long_garbage.send(endless.data(), endless.size());
  std::vector<Socket> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(connected());
  EXPECT_TRUE(is_closed(garbage));
  EXPECT_TRUE(is_closed(long_garbage));
  const double begin = now();
  EXPECT_EQ(connect_as(place(1, 2)), "");
  EXPECT_LT(now() - begin, 2);
  first.join();
}

// A rank that says hello and gives up before it is answered comes again; one that has come and goes ends the run.
TEST_F(RendezvousTest, ThoseThatGoAgain) {
  std::string results[2];
  std::thread first([&] { results[0] = connect_as(place(0, 4)); });
  const Hello one = hello(1, 4);
  connected().send(&one, sizeof one);
  std::this_thread::sleep_for(50ms);
  Socket socket = connected();
  socket.send(&one, sizeof one);
  EXPECT_EQ(answer(socket).verdict, Verdict::noted);
  std::thread second([&] { results[1] = connect_as(place(2, 4)); });
  std::this_thread::sleep_for(200ms);
  socket.send("!", 1);
  std::this_thread::sleep_for(50ms);
  socket.close();
  first.join();
  second.join();
  EXPECT_EQ(results[0], "rank 1 on host-b: killed or cut off before all had come: its connection closed");
  EXPECT_EQ(results[1], results[0]);
}

TEST_F(RendezvousTest, ARankThatSendsNonsenseIsLost) {
  std::string result;
  std::thread first([&] { result = connect_as(place(0, 2)); });
  const Hello one = hello(1, 2);
  const Socket socket = connected();
  socket.send(&one, sizeof one);
  EXPECT_EQ(answer(socket).verdict, Verdict::noted);
  socket.send("!", 1);
  EXPECT_EQ(answer(socket).verdict, Verdict::complete);
  const std::string nonsense(100, '\xff');
  socket.send(nonsense.data(), nonsense.size());
  first.join();
  EXPECT_EQ(result, "rank 1 on host-b: sent what is no message of a rank");
}

}  // namespace
}  // namespace wick
