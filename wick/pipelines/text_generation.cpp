#include "wick/pipelines/text_generation.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace wick {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t checked_context(int64_t context, const LlamaConfig& config) {
  check(context >= 1 && context <= config.positions, "the context should be from 1 to {} tokens, found {}",
        config.positions, context);
  return context;
}

}  // namespace

void TextRequest::check(int64_t context) const {
  sampling.check();
  wick::check(!prompt.empty(), "the prompt has no tokens");
  wick::check(max_tokens >= 1, "at least 1 token should be asked for, found {}", max_tokens);
  const int64_t tokens = int64_t(prompt.size()), wanted = until_full ? 1 : max_tokens;
  wick::check(tokens <= context - wanted,
              "the prompt has {} tokens, and {} more do not fit into the context of {}: shorten it, ask for fewer, or "
              "take a larger context",
              tokens, wanted, context);
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
  // Else the longest end of the text that some stop begins with waits for what follows.
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

Generator::Generator(const Llama& model, int64_t context)
    : model_(model), cache_(model.config(), 1, checked_context(context, model.config()), model.place()) {}

// Runs `ids` and gives the logits behind the last of them.
std::vector<float> Generator::next_logits(const std::vector<int64_t>& ids) {
  const int64_t all = int64_t(ids.size());
  Tensor hidden;
  for (int64_t begin = 0; begin < all; begin += kPiece) {
    const int64_t tokens = std::min(kPiece, all - begin);
    const std::vector<int64_t> piece(ids.begin() + begin, ids.begin() + begin + tokens);
    const TokenPlan plan = cache_.extend({tokens});
    hidden = model_(Tensor::of(piece, {1, tokens}), plan, &cache_);
    seen_.insert(seen_.end(), piece.begin(), piece.end());
  }
  return model_.logits(slice(hidden, 1, hidden.dim(1) - 1, hidden.dim(1))).to_vector();
}

// Keeps what the prompt has in common with the text before, and runs the rest of it: the logits behind its end.
std::vector<float> Generator::read(const std::vector<int64_t>& prompt, TextAnswer& answer) {
  // At least the last token runs, for its logits.
  const auto common = std::mismatch(prompt.begin(), prompt.end() - 1, seen_.begin(), seen_.end());
  answer.reused = common.first - prompt.begin();
  seen_.resize(size_t(answer.reused));
  cache_.truncate(0, answer.reused);
  const Clock::time_point start = Clock::now();
  std::vector<float> logits = next_logits({common.first, prompt.end()});
  answer.prompt_seconds = seconds_since(start);
  return logits;
}

TextAnswer Generator::operator()(const TextRequest& request, const TextStream& stream, const OnText& on_text) {
  request.check(context());
  const int64_t vocab = model_.config().vocab;
  for (const int64_t id : request.prompt)
    check(0 <= id && id < vocab, "the prompt has id {}, beyond the model's vocabulary of {}", id, vocab);
  TextAnswer answer;
  std::vector<float> logits = read(request.prompt, answer);
  const Clock::time_point start = Clock::now();
  std::vector<int64_t> text = request.prompt;
  TokenSampler sampler(request.sampling);
  StopFilter filter(request.stops);
  std::optional<Finish> finish;
  const auto emit = [&](const std::string& piece) {
    answer.text += piece;
    if (!piece.empty() && on_text && !on_text(piece)) finish = Finish::caller;
  };
  while (!finish) {
    const int64_t id = sampler(std::exchange(logits, {}), text);
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end()) {
      finish = Finish::stop_id;
      break;
    }
    answer.ids.push_back(id);
    text.push_back(id);
    emit(filter.push(stream.push(id)));
    if (finish) break;
    if (filter.found())
      finish = Finish::stop_text;
    else if (int64_t(answer.ids.size()) == request.max_tokens)
      finish = Finish::max_tokens;
    else if (int64_t(seen_.size()) == context())
      finish = Finish::full_context;
    else
      logits = next_logits({id});
  }
  answer.finish = *finish;
  if (answer.finish != Finish::caller) {
    emit(filter.push(stream.finish()));
    emit(filter.finish());
  }
  answer.answer_seconds = seconds_since(start);
  return answer;
}

}  // namespace wick
