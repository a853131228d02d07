#include "answer_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "text_flags.h"
#include "wick/io/quote.h"

namespace wick::cli {
namespace {

constexpr const char *kDim = "\x1b[2m", *kNotDim = "\x1b[22m";

void print_thought(std::string_view text) {
  const std::string shown = isatty(STDERR_FILENO) ? printable_text(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

// By itself, so that the terminal is as it was wherever the program ends.
void print_dimmed(std::string_view text) {
  fmt::print("{}", kDim);
  print_text(text);
  fmt::print("{}", kNotDim);
  std::fflush(stdout);
}

}  // namespace

AnswerPrinter::Screen AnswerPrinter::Screen::standard() {
  if (!isatty(STDOUT_FILENO)) return {print_text, print_thought};
  const char* const no_color = std::getenv("NO_COLOR");
  const bool dims = !no_color || !*no_color;
  return {print_text, dims ? print_dimmed : print_text, /*is_one=*/true};
}

AnswerPrinter::Screen AnswerPrinter::Screen::none() {
  const auto nowhere = [](std::string_view) {};
  return {nowhere, nowhere};
}

void AnswerPrinter::push(std::string_view text) {
  whole_ += text;
  show(splitter_.push(text));
}

void AnswerPrinter::finish() {
  show(splitter_.finish());
  if (!screen_.is_one && last_was_thought_ == true) screen_.thought("\n");
  screen_.answer("\n");
}

void AnswerPrinter::show(const std::vector<ThoughtPiece>& pieces) {
  for (const auto& [text, is_thought] : pieces) {
    if (last_was_thought_ != is_thought) turn_to(is_thought);
    (is_thought ? screen_.thought : screen_.answer)(text);
    (is_thought ? thought_ : answer_) += text;
  }
}

void AnswerPrinter::turn_to(bool is_thought) {
  const bool is_first = !last_was_thought_;
  last_was_thought_ = is_thought;
  std::string& before = is_thought ? thought_ : answer_;
  if (screen_.is_one && !is_first) screen_.answer("\n\n");
  if (!screen_.is_one && !is_first && !is_thought) screen_.thought("\n");
  if (!screen_.is_one && !is_thought && !before.empty()) screen_.answer("\n\n");
  if (!before.empty()) before += "\n\n";
}

}  // namespace wick::cli
