#include "wick/train/rank_sums.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace wick {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeToLearn{1};

// A collective fails too where another rank is gone. That rank's connection tells of it, and of which it was, but
// perhaps a little later.
template <class Call>
void with_cause(const Ranks& ranks, const Call& call) try {
  call();
} catch (const RankError&) {
  throw;
} catch (const Error&) {
  for (const auto end = steady_clock::now() + kTimeToLearn; steady_clock::now() < end;) {
    ranks.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw;
}

}  // namespace

RankSums::RankSums(Ranks& ranks, RankWatch& watch, Backend& backend, bool are_light) : ranks_(ranks), watch_(watch) {
  if (ranks.count() == 1) return;
  const CollectiveUse use{.are_threads = ranks.are_threads(), .are_light = are_light};
  const std::string id = ranks.exchange(ranks.is_first() ? backend.collective_id(use) : "").front();
  if (!id.empty())
    with_cause(ranks,
               [&] { collective_ = backend.join_collective(id, ranks.rank(), ranks.count(), [&] { ranks.check(); }); });
  check(collective_ || backend.memory().on_host(), "{}: this device has no collectives", backend.name());
  if (collective_) watch_.set_abort([this] { collective_->abort(); });
}

RankSums::~RankSums() {
  watch_.set_abort({});
  if (collective_ && (ranks_.failure() || std::uncaught_exceptions() > 0)) collective_->abort();
}

void RankSums::add(const Tensor& x) {
  check(x.dtype() == DType::f32 && x.contiguous(), "RankSums: expected contiguous f32, found {} {}", name_of(x.dtype()),
        x.shape());
  if (collective_)
    with_cause(ranks_, [&] { collective_->sum(x); });
  else
    ranks_.sum(x.detached().data<float>(), size_t(x.numel()));
}

void RankSums::all_gather(const Tensor& x, const std::vector<int64_t>& counts) {
  std::vector<Tensor> parts;
  int64_t at = 0;
  for (const int64_t count : counts) {
    parts.push_back(x.window({count}, {1}, at));
    at += count;
  }
  if (collective_) {
    for (size_t rank = 0; rank < parts.size(); ++rank)
      if (counts[rank] > 0) with_cause(ranks_, [&] { collective_->broadcast(parts[rank], int(rank)); });
    return;
  }
  const auto bytes = [&](size_t rank) { return size_t(counts[rank]) * sizeof(float); };
  const auto data = [&](size_t rank) { return parts[rank].view().as<char>(); };
  const auto own = size_t(ranks_.rank());
  const std::vector<std::string> all = ranks_.exchange(std::string(data(own), bytes(own)));
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    check(all[rank].size() == bytes(rank), "rank {} sent {} bytes of parameters where {} were expected", rank,
          all[rank].size(), bytes(rank));
    std::memcpy(data(rank), all[rank].data(), bytes(rank));
  }
}

void RankSums::check_same(const char* what, const std::string& text) {
  const std::vector<std::string> all = ranks_.exchange(text);
  for (size_t rank = 1; rank < all.size(); ++rank)
    check(all[rank] == all[0], "rank {} has another {} than rank 0; is it another version of Wick?", rank, what);
}

void RankSums::join() {
  if (collective_) with_cause(ranks_, [&] { collective_->join(); });
}

}  // namespace wick
