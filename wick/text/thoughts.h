// Splits the answer of a model that thinks into its thought and the answer itself, as the text comes.
//
// A thought stands at the start of an answer, behind white space at most, between two marks. The prompt may have opened
// it: some chat templates end with "<think>\n". The marks are those of Qwen and DeepSeek (<think>), Magistral
// ([THINK]), Seed-OSS (<seed:think>), EXAONE Deep (<thought>), Command A (<|START_THINKING|>), Gemma 4
// (<|channel>thought, which may come again later), and the channels of gpt-oss, whose format is OpenAI's "harmony".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

// The texts of control tokens that stand in marks. Decoding has to spell them out.
std::span<const std::string_view> thought_tokens();

struct ThoughtPiece {
  std::string text;
  bool is_thought = false;

  bool operator==(const ThoughtPiece&) const = default;
};

class ThoughtSplitter {
 public:
  // `prompt` is the text before the answer, or its end.
  explicit ThoughtSplitter(std::string_view prompt = {});

  // The text that is certain, without marks; adjacent pieces differ in kind. As templates have it, a thought has no
  // newlines around it, nor has an answer before it. Text without a mark is left as it is.
  std::vector<ThoughtPiece> push(std::string_view text);
  std::vector<ThoughtPiece> finish();  // the text held back

  // The mark with which the prompt opened a thought, and the white space behind it; empty if it did not.
  const std::string& opening() const { return opening_; }

 private:
  enum class State { start, body, header };
  using Pieces = std::vector<ThoughtPiece>;

  void begin(bool is_thought);
  bool read_start(Pieces& out);
  bool read_body(Pieces& out);
  bool read_header(Pieces& out);
  void emit(std::string_view text, Pieces& out);
  std::span<const std::string_view> ends() const;  // marks that end the part

  State state_ = State::start;
  std::optional<size_t> marks_;  // the row of the table
  bool in_channels_ = false;
  std::string opening_, held_;

  // The part that is read: a thought or an answer.
  bool is_thought_ = false, is_fresh_ = false, strips_ = false;
  std::string newlines_;                  // that the thought may end with
  std::optional<bool> last_was_thought_;  // the kind of the last text that was given
};

}  // namespace wick
