// Groups of ranks for tests: threads of this process, or processes that it forks.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "io/files.h"
#include "wick/ranks/ranks.h"

namespace wick {

using namespace std::chrono_literals;

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The error's message, or the action's own result.
inline std::string outcome_of(const std::function<std::string()>& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    return error.what();
  }
}

using Body = std::function<std::string(Ranks&)>;

// Results by rank.
inline std::vector<std::string> run_threads(std::vector<std::unique_ptr<Ranks>> ranks, const Body& body) {
  std::vector<std::string> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      results[i] = outcome_of([&] { return body(*ranks[i]); });
      ranks[i].reset();
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline std::vector<std::string> run_threads(int count, const Body& body) {
  return run_threads(Ranks::of_threads(count), body);
}

inline RankPlace place_of(int rank, int count, const std::filesystem::path& id_file) {
  RankPlace place;
  place.rank = rank;
  place.count = count;
  place.id_file = id_file.string();
  place.timeout = 20s;
  return place;
}

// Forked processes that connect over TCP. Forks before this process has threads.
class Processes {
 public:
  Processes(int count, const Body& body, std::chrono::milliseconds silence = RankPlace().silence) {
    for (int rank = 0; rank < count; ++rank) start(rank, count, body, silence);
  }
  ~Processes() {
    for (const Child& child : children_) {
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
      ::close(child.pipe);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void signal(int rank, int number) const { ::kill(children_[size_t(rank)].pid, number); }

  // The next line that a child has said; "" if it ends or says nothing for long.
  std::string line(int rank) {
    Child& child = children_[size_t(rank)];
    for (size_t end; (end = child.said.find('\n')) == child.said.npos;) {
      pollfd one{child.pipe, POLLIN, 0};
      char bytes[4096];
      const ssize_t n = ::poll(&one, 1, 15'000) > 0 ? ::read(child.pipe, bytes, sizeof bytes) : 0;
      if (n <= 0) return "";
      child.said.append(bytes, size_t(n));
    }
    const std::string found = child.said.substr(0, child.said.find('\n'));
    child.said.erase(0, found.size() + 1);
    return found;
  }

  // For the body, in a child.
  static void say(const std::string& text) {
    const std::string whole = text + "\n";
    if (::write(own_pipe_, whole.data(), whole.size()) != ssize_t(whole.size())) ::_exit(3);
  }

 private:
  struct Child {
    pid_t pid;
    int pipe;
    std::string said;
  };

  void start(int rank, int count, const Body& body, std::chrono::milliseconds silence) {
    int pipe[2];
    if (::pipe(pipe) != 0) std::abort();
    const pid_t pid = ::fork();
    if (pid != 0) {
      ::close(pipe[1]);
      children_.push_back({pid, pipe[0], {}});
      return;
    }
    own_pipe_ = pipe[1];
    RankPlace place = place_of(rank, count, folder_ / "id");
    place.silence = silence;
    say(outcome_of([&] { return body(*Ranks::connect(place)); }));
    ::_exit(0);
  }

  TemporaryDirectory folder_;
  std::vector<Child> children_;
  inline static int own_pipe_ = -1;
};

inline std::vector<std::string> run_processes(int count, const Body& body) {
  Processes processes(count, body);
  std::vector<std::string> results;
  for (int rank = 0; rank < count; ++rank) results.push_back(processes.line(rank));
  return results;
}

// Ranks of this process that are connected over TCP.
inline std::vector<std::unique_ptr<Ranks>> connected_threads(int count) {
  TemporaryDirectory folder;
  std::vector<std::unique_ptr<Ranks>> ranks(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] { ranks[size_t(rank)] = Ranks::connect(place_of(rank, count, folder / "id")); });
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

inline std::string on_this_host(int rank, const std::string& cause) {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return "rank " + std::to_string(rank) + " on " + name + ": " + cause;
}

}  // namespace wick
