#include "line_editor.h"

#include <histedit.h>
#include <langinfo.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "chat_history.h"
#include "wick/core/error.h"

namespace wick::cli {
namespace {

char kPrompt[] = "> ";

// Models read and write UTF-8.
void take_characters() {
  std::setlocale(LC_CTYPE, "");
  if (nl_langinfo(CODESET) != std::string_view("UTF-8")) std::setlocale(LC_CTYPE, "C.UTF-8");
}

unsigned char suspend(EditLine*, int) {
  std::raise(SIGTSTP);
  return CC_REDISPLAY;
}

}  // namespace

LineEditor::LineEditor(const std::vector<std::string>& before)
    : history_(history_init(), history_end),
      editor_((take_characters(), el_init("wick", stdin, stdout, stderr)), el_end) {
  check(history_ && editor_, "standard input: the terminal cannot be edited: {}", std::strerror(errno));
  HistEvent event;
  ::history(history_.get(), &event, H_SETSIZE, int(ChatHistory::kLines));
  ::history(history_.get(), &event, H_SETUNIQUE, 1);
  for (const std::string& line : before) remember(line);
  EditLine* editor = editor_.get();
  el_set(
      editor, EL_PROMPT, +[](EditLine*) { return kPrompt; });
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_SIGNAL, 1);  // the terminal is left as it was
  el_set(editor, EL_HIST, ::history, history_.get());
  el_set(editor, EL_SETTY, "-d", "-isig", nullptr);  // while a line is edited Ctrl-C and Ctrl-Z are keys
  el_set(editor, EL_BIND, "^C", "em-kill-line", nullptr);
  el_set(editor, EL_ADDFN, "suspend", "Stop, until the shell goes on with it", suspend);
  el_set(editor, EL_BIND, "^Z", "suspend", nullptr);
}

std::optional<std::string> LineEditor::next() {
  int bytes = 0;
  errno = 0;
  const char* typed = el_gets(editor_.get(), &bytes);
  check(bytes >= 0, "standard input: cannot be read: {}", std::strerror(errno));
  if (!typed || bytes == 0) return {};
  std::string line(typed, size_t(bytes));
  if (line.ends_with('\n')) line.pop_back();
  if (!line.empty()) remember(line);
  return line;
}

void LineEditor::remember(const std::string& line) {
  HistEvent event;
  ::history(history_.get(), &event, H_ENTER, line.c_str());
}

}  // namespace wick::cli
