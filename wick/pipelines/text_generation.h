// Text from a language model, a token at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/pipelines/text_decoder.h"
#include "wick/pipelines/token_sampler.h"

namespace wick {

// A tokenizer's streaming decode: text as soon as its characters are whole, and the rest at the end.
struct TextStream {
  std::function<std::string(int64_t id)> push;
  std::function<std::string()> finish;
};

struct TextRequest {
  std::vector<int64_t> prompt;  // ids, at least one
  int64_t max_tokens = 256;     // the prompt and these must fit into the context,
  bool until_full = false;      // unless a full context is to end the answer
  Sampling sampling;
  std::vector<int64_t> stop_ids;   // end the answer, and are not part of it
  std::vector<std::string> stops;  // the same for strings, anywhere in the text

  void check(int64_t context) const;  // throws Error for a value out of range, or a request that does not fit
};

enum class Finish : uint8_t { stop_id, stop_text, max_tokens, full_context, caller };
const char* name_of(Finish finish);  // "stop", "length" or "cancelled", as servers call them

struct TextAnswer {
  std::vector<int64_t> ids;  // drawn ids, without the one that ended the answer
  std::string text;
  Finish finish = Finish::max_tokens;
  int64_t reused = 0;                             // tokens of the prompt that were in the cache already
  double prompt_seconds = 0, answer_seconds = 0;  // until the first token is known, and from then on
};

// Finds strings in a text that comes in pieces, and holds back text that may begin one of them.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops);
  std::string push(std::string_view text);  // the text that certainly stands before any of them
  std::string finish();                     // the text held back
  bool found() const { return found_; }     // after which push() returns nothing

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

class Generator {
 public:
  // At most `context` tokens are seen at once, no more than the model has positions. The model is borrowed.
  Generator(const Llama& model, int64_t context) : model_(model), decoder_(model, context) {}

  // Called with each piece of the answer's text; false ends it.
  using OnText = std::function<bool(std::string_view text)>;
  // A prefix that the prompt shares with the previous text is not computed again.
  TextAnswer operator()(const TextRequest& request, const TextStream& stream, const OnText& on_text = {});

  int64_t context() const { return decoder_.context(); }

 private:
  class Draws;
  int64_t read(const std::vector<int64_t>& prompt);

  const Llama& model_;
  TextDecoder decoder_;
  std::vector<int64_t> seen_;  // the ids that the decoder has read
};

}  // namespace wick
