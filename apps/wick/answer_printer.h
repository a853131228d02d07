// The answer of a language model as a user sees it: its thoughts apart from the answer itself.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "wick/text/thoughts.h"

namespace wick::cli {

class AnswerPrinter {
 public:
  using Write = std::function<void(std::string_view text)>;
  // Where pieces go. Where both go to one place, a blank line stands between them; else a newline ends a thought.
  struct Screen {
    Write answer, thought;
    bool is_one = false;

    // Standard output; thoughts are dimmed there, unless NO_COLOR is set (no-color.org). Where it is no terminal,
    // thoughts go to standard error.
    static Screen standard();
    static Screen none();  // nothing is shown
  };

  // `prompt` is the text before the answer, or its end.
  AnswerPrinter(std::string_view prompt, Screen screen) : splitter_(prompt), screen_(std::move(screen)) {}

  void push(std::string_view text);
  void finish();  // the rest, and the end of the answer's last line

  const std::string& thought() const { return thought_; }
  const std::string& answer() const { return answer_; }
  // The answer with its marks, also that of the prompt.
  std::string whole() const { return splitter_.opening() + whole_; }

 private:
  void show(const std::vector<ThoughtPiece>& pieces);
  void turn_to(bool is_thought);

  ThoughtSplitter splitter_;
  Screen screen_;
  std::string thought_, answer_, whole_;
  std::optional<bool> last_was_thought_;
};

}  // namespace wick::cli
