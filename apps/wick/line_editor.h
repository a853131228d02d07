// Lines that are typed at a terminal, edited and repeated by libedit.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

struct editline;  // libedit's
struct history;

namespace wick::cli {

// Where both standard input and output are a terminal. Characters are those of the locale, or of UTF-8 where that has
// another encoding; numbers stay as they are. Ctrl-C clears the line.
class LineEditor {
 public:
  // The lines that the arrow keys bring back, the oldest first.
  explicit LineEditor(const std::vector<std::string>& before);

  // The next line behind a prompt, without its end, which the arrow keys then bring back too; none where Ctrl-D ends
  // the input. Throws Error where the terminal cannot be read.
  std::optional<std::string> next();

 private:
  void remember(const std::string& line);

  std::unique_ptr<history, void (*)(history*)> history_;
  std::unique_ptr<editline, void (*)(editline*)> editor_;
};

}  // namespace wick::cli
