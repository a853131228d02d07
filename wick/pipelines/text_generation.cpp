#include "wick/pipelines/text_generation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "wick/io/count.h"

namespace wick {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

void TextRequest::check(int64_t context) const {
  sampling.check();
  wick::check(!prompt.empty(), "the prompt has no tokens: there is nothing to go on from");
  wick::check(max_tokens >= 1, "at least 1 token should be asked for, found {}", max_tokens);
  const int64_t tokens = int64_t(prompt.size()), wanted = until_full ? 1 : max_tokens;
  wick::check(tokens < context,
              "the prompt has {}, more than go into the context of {}: shorten it, or take a larger context",
              count_of(tokens, "token"), context);
  wick::check(tokens <= context - wanted,
              "the prompt has {}, and {} more do not fit into the context of {}: shorten it, ask for fewer, or "
              "take a larger context",
              count_of(tokens, "token"), wanted, context);
}

const char* name_of(Finish finish) {
  switch (finish) {
    case Finish::stop_id:
    case Finish::stop_text:
      return "stop";
    case Finish::caller:
      return "cancelled";
    default:
      return "length";
  }
}

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) { std::erase(stops_, ""); }

std::string StopFilter::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t safe = held_.size();
  for (const std::string& stop : stops_) {
    if (const size_t at = held_.find(stop); at != held_.npos) {
      safe = std::min(safe, at);
      found_ = true;
    }
  }
  // Otherwise the longest end of the text that begins some stop waits for more text.
  if (!found_)
    for (const std::string& stop : stops_)
      for (size_t n = std::min(stop.size() - 1, held_.size()); n > 0; --n)
        if (held_.ends_with(std::string_view(stop).substr(0, n))) {
          safe = std::min(safe, held_.size() - n);
          break;
        }
  std::string ready = held_.substr(0, safe);
  held_ = found_ ? "" : held_.substr(safe);
  return ready;
}

std::string StopFilter::finish() { return std::exchange(held_, ""); }

// The tokens of an answer in turn. A device goes on with the likeliest one before the host has read it.
class Generator::Draws {
 public:
  Draws(TextDecoder& decoder, const Sampling& sampling, bool ahead)
      : decoder_(decoder), sampler_(sampling), greedy_(sampling.greedy()), ahead_(ahead && greedy_) {}

  // `more`: another token may follow, unless this one ends the answer.
  int64_t next(std::span<const int64_t> text, bool more) {
    if (!greedy_) return sampler_(decoder_.logits(), text);
    const TextDecoder::Pending pending = decoder_.likeliest();
    if (ahead_ && more) decoder_.step();
    const auto [id, logit] = pending.wait();
    TokenSampler::check_highest(logit);
    return id;
  }
  // Runs the token that next() gave.
  void go_on(int64_t id) {
    if (ahead_) return;
    if (!greedy_) decoder_.put(id);
    decoder_.step();
  }

 private:
  TextDecoder& decoder_;
  TokenSampler sampler_;
  bool greedy_, ahead_;
};

// Keeps the prompt's common prefix with the text before, and runs the rest of it. Returns the tokens kept.
int64_t Generator::read(const std::vector<int64_t>& prompt) {
  // At least the last token runs, for its logits.
  const auto common = std::mismatch(prompt.begin(), prompt.end() - 1, seen_.begin(), seen_.end());
  const int64_t reused = common.first - prompt.begin();
  seen_.resize(size_t(reused));
  decoder_.truncate(reused);
  decoder_.read({common.first, prompt.end()});
  seen_ = prompt;
  return reused;
}

TextAnswer Generator::operator()(const TextRequest& request, const TextStream& stream, const OnText& on_text) {
  request.check(context());
  const int64_t vocab = model_.config().vocab;
  for (const int64_t id : request.prompt)
    check(0 <= id && id < vocab, "the prompt has id {}, beyond the model's vocabulary of {}", id, vocab);
  TextAnswer answer;
  Clock::time_point start = Clock::now();
  answer.reused = read(request.prompt);
  std::vector<int64_t> text = request.prompt;
  Draws draws(decoder_, request.sampling, /*ahead=*/!model_.place().memory->on_host());
  StopFilter filter(request.stops);
  std::optional<Finish> finish;
  const auto emit = [&](const std::string& piece) {
    answer.text += piece;
    if (!piece.empty() && on_text && !on_text(piece)) finish = Finish::caller;
  };
  while (!finish) {
    const bool last = int64_t(answer.ids.size()) + 1 == request.max_tokens, full = int64_t(seen_.size()) == context();
    const int64_t id = draws.next(text, /*more=*/!last && !full);
    if (answer.ids.empty()) answer.prompt_seconds = seconds_since(std::exchange(start, Clock::now()));
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end()) {
      finish = Finish::stop_id;
      break;
    }
    answer.ids.push_back(id);
    text.push_back(id);
    emit(filter.push(stream.push(id)));
    if (finish) break;
    if (filter.found()) {
      finish = Finish::stop_text;
    } else if (last) {
      finish = Finish::max_tokens;
    } else if (full) {
      finish = Finish::full_context;
    } else {
      draws.go_on(id);
      seen_.push_back(id);
    }
  }
  decoder_.truncate(int64_t(seen_.size()));
  answer.finish = *finish;
  if (answer.finish != Finish::caller) {
    emit(filter.push(stream.finish()));
    emit(filter.finish());
  }
  answer.answer_seconds = seconds_since(start);
  return answer;
}

}  // namespace wick
