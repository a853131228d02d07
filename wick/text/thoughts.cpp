#include "wick/text/thoughts.h"

#include <algorithm>
#include <array>

namespace wick {
namespace {

constexpr std::string_view kChannelMark = "<|channel|>", kMessageMark = "<|message|>", kEndMark = "<|end|>",
                           kStartMark = "<|start|>";
constexpr std::string_view kAnalysis = "analysis";

struct ThoughtMarks {
  std::array<std::string_view, 1> open, close;
  bool recurs = false;  // a thought may stand behind text too
};

constexpr ThoughtMarks kMarks[] = {{{"<think>"}, {"</think>"}},
                                   {{"[THINK]"}, {"[/THINK]"}},
                                   {{"<seed:think>"}, {"</seed:think>"}},
                                   {{"<thought>"}, {"</thought>"}},
                                   {{"<|START_THINKING|>"}, {"<|END_THINKING|>"}},
                                   {{"<|channel>thought"}, {"<channel|>"}, /*recurs=*/true}};
constexpr std::array kChannelEnds{kEndMark, kStartMark, kChannelMark};

constexpr std::string_view kTokens[] = {
    "<think>",     "</think>",    "[THINK]",    "[/THINK]",   "<seed:think>",       "</seed:think>",
    "<thought>",   "</thought>",  "<|channel>", "<channel|>", "<|START_THINKING|>", "<|END_THINKING|>",
    "<|channel|>", "<|message|>", "<|end|>",    "<|start|>",  "<|constrain|>"};

constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

std::string_view without_newlines(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

// The bytes at the end of the text that may begin the mark.
size_t begun_size(std::string_view text, std::string_view mark) {
  size_t size = std::min(text.size(), mark.size() - 1);
  while (size > 0 && !text.ends_with(mark.substr(0, size))) --size;
  return size;
}

}  // namespace

std::span<const std::string_view> thought_tokens() { return kTokens; }

ThoughtSplitter::ThoughtSplitter(std::string_view prompt) {
  const std::string_view end = prompt.substr(0, prompt.find_last_not_of(kWhiteSpace) + 1);
  const auto open = [&](std::string_view mark) {
    if (!end.ends_with(mark)) return false;
    opening_ = prompt.substr(end.size() - mark.size());
    begin(/*is_thought=*/true);
    return true;
  };
  for (size_t i = 0; i < std::size(kMarks); ++i)
    if (open(kMarks[i].open[0])) marks_ = i;
  in_channels_ = open("<|channel|>analysis<|message|>");
}

std::vector<ThoughtPiece> ThoughtSplitter::push(std::string_view text) {
  held_ += text;
  Pieces out;
  const auto read = [&] {
    return state_ == State::start ? read_start(out) : state_ == State::body ? read_body(out) : read_header(out);
  };
  while (read()) {
  }
  return out;
}

std::vector<ThoughtPiece> ThoughtSplitter::finish() {
  Pieces out;
  // The marks between two channels are no text; others that were not finished are.
  if (state_ != State::header || !last_was_thought_) emit(held_, out);
  held_.clear();
  return out;
}

std::span<const std::string_view> ThoughtSplitter::ends() const {
  if (in_channels_) return kChannelEnds;
  if (!marks_) return {};
  const ThoughtMarks& marks = kMarks[*marks_];
  if (is_thought_) return marks.close;
  if (marks.recurs) return marks.open;
  return {};
}

// A part begins behind a mark.
void ThoughtSplitter::begin(bool is_thought) {
  state_ = State::body;
  is_thought_ = is_thought;
  is_fresh_ = strips_ = true;
  newlines_.clear();
}

// Each of these returns whether there may be more to read.
bool ThoughtSplitter::read_start(Pieces& out) {
  const size_t first = held_.find_first_not_of(kWhiteSpace);
  if (first == held_.npos) return false;
  const std::string_view text = std::string_view(held_).substr(first);
  const auto stands = [&](std::string_view mark) { return text.starts_with(mark); };
  const auto may_come = [&](std::string_view mark) { return mark.starts_with(text); };
  if (stands(kChannelMark)) {
    in_channels_ = true;
    state_ = State::header;
    return true;
  }
  const auto marks = std::ranges::find_if(kMarks, stands, [](const ThoughtMarks& m) { return m.open[0]; });
  if (marks != std::end(kMarks)) {
    marks_ = size_t(marks - kMarks);
    held_.erase(0, first + marks->open[0].size());
    begin(/*is_thought=*/true);
    return true;
  }
  if (may_come(kChannelMark) || std::ranges::any_of(kMarks, may_come, [](const ThoughtMarks& m) { return m.open[0]; }))
    return false;
  state_ = State::body;
  return read_body(out);
}

bool ThoughtSplitter::read_body(Pieces& out) {
  size_t at = held_.npos, size = 0, kept = 0;
  for (const std::string_view mark : ends()) {
    kept = std::max(kept, begun_size(held_, mark));
    if (const size_t found = held_.find(mark); found < at) at = found, size = mark.size();
  }
  const bool is_over = at != held_.npos;
  if (!is_over) at = held_.size() - kept;
  emit(std::string_view(held_).substr(0, at), out);
  held_.erase(0, at + size);
  if (!is_over) return false;
  if (in_channels_)
    state_ = State::header;
  else
    begin(!is_thought_);
  return true;
}

// "<|start|>assistant<|channel|>final<|message|>" and the like. The header of a tool's call is a part of the answer,
// since it names the tool.
bool ThoughtSplitter::read_header(Pieces& out) {
  const size_t end = held_.find(kMessageMark);
  if (end == held_.npos) return false;
  const std::string header = held_.substr(0, end + kMessageMark.size());
  held_.erase(0, header.size());
  const size_t mark = header.rfind(kChannelMark);
  const size_t name = mark == header.npos ? 0 : mark + kChannelMark.size();
  begin(header.compare(name, kAnalysis.size(), kAnalysis) == 0);
  if (!is_thought_ && header.find("to=") != header.npos) emit(header, out);
  return true;
}

void ThoughtSplitter::emit(std::string_view text, Pieces& out) {
  if (strips_) text = without_newlines(text);
  if (text.empty()) return;
  strips_ = false;
  std::string whole = newlines_ + std::string(text);
  newlines_.clear();
  if (is_thought_) {
    const size_t end = whole.find_last_not_of('\n') + 1;
    newlines_ = whole.substr(end);
    whole.resize(end);
    if (whole.empty()) return;
  }
  // Two parts of a kind, one behind the other.
  if (is_fresh_ && last_was_thought_ == is_thought_) whole.insert(0, "\n\n");
  is_fresh_ = false;
  last_was_thought_ = is_thought_;
  if (!out.empty() && out.back().is_thought == is_thought_)
    out.back().text += whole;
  else
    out.push_back({std::move(whole), is_thought_});
}

}  // namespace wick
