// A line of training text of unknown origin, with the rows of its messages and the ids of its texts: all must be the
// tokenizer's. Errors are of one line.
#include "wick/text/text_line.h"

#include "tokenizer.h"
#include "wick/text/chat.h"

namespace {

using namespace wick;

const Tokenizer& tokenizer() {
  static const Tokenizer made = Tokenizer::load(WICK_SOURCE_DIR "/tests/golden/tokenizers/qwen3");
  return made;
}

void look_at(const std::vector<int64_t>& ids) {
  for (const int64_t id : ids) expect(id >= 0 && id < tokenizer().size());
}

void encode(const TextLine& line) {
  if (const auto* text = std::get_if<std::string>(&line)) return look_at(tokenizer().encode(*text));
  if (const auto* pair = std::get_if<TextCompletion>(&line)) {
    look_at(tokenizer().encode(pair->prompt));
    return look_at(tokenizer().encode(pair->completion, {.add_special = false, .preceding = Preceding::kText}));
  }
  static const std::vector<ChatTemplate> templates = [] {
    std::vector<ChatTemplate> all;
    for (const char* name : {"chatml", "qwen3", "mistral-v3", "llama2"})
      all.emplace_back(tokenizer(), ChatOptions{.name = name, .date = "2026-11-27"}, "qwen3");
    return all;
  }();
  for (const ChatTemplate& chat : templates) try {
      for (const ChatRow& row : chat.rows(std::get<Conversation>(line))) {
        expect(row.ids.size() == row.counts.size());
        look_at(row.ids);
      }
    } catch (const Error& error) {
      expect(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    encode(parse_text_line({reinterpret_cast<const char*>(data), size}, "a.jsonl: line 1"));
  } catch (const Error& error) {
    expect(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
