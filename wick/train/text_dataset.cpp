#include "wick/train/text_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/sha256.h"
#include "wick/models/llama_config.h"
#include "wick/pipelines/language_model.h"
#include "wick/text/text_line.h"

namespace wick {
namespace {

constexpr size_t kLongestLine = size_t{64} << 20;  // bytes; more is not a line of text
constexpr size_t kBlock = size_t{1} << 20;
constexpr int64_t kReported = 1000;  // lines

// Files often handed over in place of JSON lines are named in the error.
void check_may_be_lines(const FileDescriptor& file) {
  std::array<char, 4096> start{};
  const std::string_view bytes(start.data(), file.read_at(0, start.data(), start.size()));
  const std::string path = file.path().string(), foreign = foreign_format(bytes);
  check(foreign.empty(), "{}: expected JSON lines, found {}", path, foreign);
  const size_t first = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  check(first == bytes.npos || bytes[first] != '[',
        "{}: expected JSON lines, found a JSON array; write each of its objects on a line of its own (jq -c '.[]')",
        path);
}

// Calls `line` with each line of a file, its number and the bytes read so far; returns the file's hash. Needs the
// memory of the longest line.
template <class Line>
std::string for_each_line(const FileDescriptor& file, Sha256& all, const Line& line) {
  Sha256 hash;
  std::string block(kBlock, '\0'), rest;
  int64_t number = 0;
  uint64_t done = 0;
  while (const size_t n = file.read_at(done, block.data(), block.size())) {
    hash.update(block.data(), n), all.update(block.data(), n);
    std::string_view bytes(block.data(), n);
    if (done == 0 && bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);  // a byte-order mark
    done += n;
    for (size_t end; (end = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(end + 1), rest.clear())
      line(rest.append(bytes.substr(0, end)), ++number, done);
    rest.append(bytes);
    check(rest.size() <= kLongestLine, "{}: line {} goes on for more than {} MiB; expected JSON lines, a document each",
          file.path().string(), number + 1, kLongestLine >> 20);
  }
  if (!rest.empty()) line(rest, ++number, done);
  return hash.hex();
}

// The last component of a file's name, unless another file has it too.
std::string short_name(const std::string& file, const std::vector<DataFile>& others) {
  const std::string name = std::filesystem::path(file).filename().string();
  const bool taken = std::any_of(others.begin(), others.end(), [&](const DataFile& o) { return o.name == name; });
  return taken ? file : name;
}

}  // namespace

TextReading text_reading(const TrainConfig& config) {
  const std::vector<LoraFile> from =
      config.from.empty() ? std::vector<LoraFile>() : std::vector<LoraFile>{{.path = config.from}};
  return {.chat = {.name = chat_template_of(config.chat_template, from),
                   .date = config.template_date,
                   .variables = config.chat_template_kwargs},
          .turns = config.train_turns};
}

int64_t TextDocument::counted() const { return std::count(counts.begin(), counts.end(), true); }

TextEncoder::TextEncoder(const std::filesystem::path& model, const TextReading& reading)
    : model_(model.string()), turns_(reading.turns), tokenizer_(load_tokenizer(model)) {
  const LlamaConfig config = LlamaConfig::read(model);
  end_ = tokenizer_.eos_id();
  if (!end_ && !config.eos_ids.empty()) end_ = config.eos_ids.front();
  vocabulary_ = config.vocab;
  const std::vector<int64_t> plain = tokenizer_.encode("a", {.add_special = false}), whole = tokenizer_.encode("a");
  puts_end_ = !plain.empty() && whole.back() != plain.back();
  try {
    template_.emplace(tokenizer_, reading.chat, model_);
  } catch (const Error& e) {
    if (reading.chat.name != ChatOptions::kAuto || dynamic_cast<const UsageError*>(&e)) throw;
    no_template_ = e.what();
  }
}

std::vector<TextDocument> TextEncoder::encode(std::string_view line, const std::string& where) const {
  const TextLine parsed = parse_text_line(line, where);
  std::vector<TextDocument> documents;
  if (const auto* conversation = std::get_if<Conversation>(&parsed)) {
    try {
      documents = chat(*conversation);
    } catch (const Error& e) {
      fail("{}: {}", where, e.what());
    }
  } else if (const auto* pair = std::get_if<TextCompletion>(&parsed)) {
    documents.push_back(completion(pair->prompt, pair->completion));
  } else {
    documents.push_back(text(std::get<std::string>(parsed)));
    check(documents.front().size() > 0, "{}: the text is empty", where);
  }
  for (TextDocument& document : documents) {
    for (const int64_t id : document.ids)
      check(id < vocabulary_, "{}: the tokenizer gives the id {}, but the model has {}", where, id,
            count_of(vocabulary_, "token"));
    if (!document.counts.empty()) document.counts.front() = false;
  }
  return documents;
}

std::vector<TextDocument> TextEncoder::chat(const Conversation& conversation) const {
  check(template_.has_value(), "{}", no_template_);
  template_->check_takes(conversation);
  std::vector<TextDocument> documents;
  for (ChatRow& row : template_->rows(conversation, turns_))
    documents.push_back({std::move(row.ids), std::move(row.counts), /*is_conversation=*/true});
  return documents;
}

std::vector<int64_t> TextEncoder::prompt(const std::string& text, bool is_message) const {
  if (!is_message || !template_) return opening(text);
  Conversation conversation;
  conversation.say("user", text);
  return template_->prompt(conversation);
}

// The ids before a text, and the text's; without those that some tokenizers put behind it.
std::vector<int64_t> TextEncoder::opening(const std::string& text) const {
  std::vector<int64_t> ids = tokenizer_.encode(text, {.parse_special = true});
  if (puts_end_ && !ids.empty()) ids.pop_back();
  if (ids.size() > 1 && ids[0] == ids[1] && ids[0] == tokenizer_.bos_id()) ids.erase(ids.begin());
  return ids;
}

// Whether a control token of a text stands at its end, or before white space alone.
bool TextEncoder::is_ended(const std::vector<int64_t>& ids) const {
  const auto is_white = [&](int64_t id) {
    return !tokenizer_.is_control(id) && tokenizer_.bytes(id).find_first_not_of(" \t\r\n") == std::string::npos;
  };
  const auto last = std::find_if_not(ids.rbegin(), ids.rend(), is_white);
  if (last == ids.rend() || !tokenizer_.is_control(*last)) return false;
  return last + 1 != ids.rend() || *last != tokenizer_.bos_id();  // which begins a text of white space
}

// The prompt's ids are those of the prompt alone, as when an answer to it is generated.
TextDocument TextEncoder::completion(const std::string& prompt, const std::string& completion) const {
  TextDocument document{opening(prompt), {}};
  document.counts.resize(document.ids.size(), false);
  const Preceding preceding = document.ids.empty()                         ? Preceding::kNothing
                              : tokenizer_.is_control(document.ids.back()) ? Preceding::kControl
                                                                           : Preceding::kText;
  const std::vector<int64_t> answer =
      tokenizer_.encode(completion, {.add_special = false, .parse_special = true, .preceding = preceding});
  document.ids.insert(document.ids.end(), answer.begin(), answer.end());
  if (end_ && !is_ended(answer)) document.ids.push_back(*end_);
  document.counts.resize(document.ids.size(), true);
  return document;
}

TextDocument TextEncoder::text(const std::string& text) const {
  if (text.empty()) return {};
  TextDocument document{opening(text), {}};
  if (end_ && !is_ended(document.ids)) document.ids.push_back(*end_);
  document.counts.resize(document.ids.size(), true);
  return document;
}

TextDataset TextDataset::read(const std::vector<std::string>& files, const TextEncoder& encoder,
                              int64_t sequence_length, LongDocuments long_documents, const Progress& progress) {
  TextDataset dataset;
  Sha256 hash;
  Faults faults;
  for (const std::string& path : files) {
    const FileDescriptor file(path);
    check_may_be_lines(file);
    const size_t before = dataset.documents.size();
    const std::string file_hash = for_each_line(file, hash, [&](std::string_view line, int64_t number, uint64_t done) {
      if (progress && number % kReported == 0) progress("Reading text, KiB", done >> 10, file.size() >> 10);
      if (line.find_first_not_of(" \t\r") == line.npos) return;
      const std::string where = fmt::format("{}: line {}", path, number);
      std::vector<TextDocument> documents;
      faults.collect([&] { documents = encoder.encode(line, where); });
      if (!faults.empty()) return;
      for (TextDocument& document : documents) dataset.add(std::move(document), sequence_length, long_documents, where);
    });
    dataset.files.push_back({short_name(path, dataset.files), file_hash});
    if (faults.empty())
      check(dataset.documents.size() > before, "{}: expected JSON lines with {}, found no document to learn from", path,
            kTextLineForms);
  }
  faults.check(files.front());
  dataset.sha256 = hash.hex();
  return dataset;
}

void TextDataset::add(TextDocument document, int64_t sequence_length, LongDocuments long_documents,
                      const std::string& where) {
  const int64_t over = document.size() - sequence_length;
  if (over <= 0) return keep(std::move(document));
  switch (long_documents) {
    case LongDocuments::error:
      fail("{}: {} do not fit in --sequence-length {}; choose --long-documents cut or split, or a longer one", where,
           count_of(document.size(), "token"), sequence_length);
    case LongDocuments::cut:
      ++cut;
      cut_tokens += over;
      document.ids.resize(size_t(sequence_length));
      document.counts.resize(size_t(sequence_length));
      return keep(std::move(document));
    case LongDocuments::split:
      ++split;
      for (int64_t begin = 0; begin < document.size(); begin += sequence_length) {
        const int64_t end = std::min(document.size(), begin + sequence_length);
        TextDocument piece{{document.ids.begin() + begin, document.ids.begin() + end},
                           {document.counts.begin() + begin, document.counts.begin() + end},
                           document.is_conversation};
        piece.counts.front() = false;
        keep(std::move(piece));
      }
  }
}

void TextDataset::keep(TextDocument document) {
  const int64_t count = document.counted();
  if (count == 0) {
    ++left_out;
    return;
  }
  tokens += document.size();
  counted += count;
  longest = std::max(longest, document.size());
  conversations += document.is_conversation;
  documents.push_back(std::move(document));
}

std::vector<int64_t> TextDataset::lengths() const {
  std::vector<int64_t> all;
  for (const TextDocument& d : documents) all.push_back(d.size());
  return all;
}

std::string TextDataset::describe() const {
  std::string text = fmt::format("{}, {}, {:.1f} % of them in the loss", count_of(documents.size(), "document"),
                                 count_of(tokens, "token"), 100 * double(counted) / double(tokens));
  if (cut > 0) text += fmt::format("; {} cut, which lost {}", cut, count_of(cut_tokens, "token"));
  if (split > 0) text += fmt::format("; {} split", split);
  if (left_out > 0) text += fmt::format("; {} left out, in which nothing counts", left_out);
  return text;
}

}  // namespace wick
