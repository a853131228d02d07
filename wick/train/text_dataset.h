// Text to learn from: files of JSON lines, a document each (text/text_line.h).
//
// The loss counts the model's part: an assistant's turns with the tokens that end them, a completion with its end of
// text, and everything in plain text. The first token of a document never counts, since nothing predicts it.
//
// Control tokens are read in texts, prompts and completions, so that a text that a chat template made has its ids: a
// token that begins texts is not put before one that has it, nor one that ends texts behind one that ends with a
// control token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/text/chat.h"
#include "wick/text/tokenizer.h"
#include "wick/train/config.h"
#include "wick/train/data_files.h"

namespace wick {

// How text becomes ids to learn from.
struct TextReading {
  ChatOptions chat;
  TrainTurns turns = TrainTurns::all;
};

TextReading text_reading(const TrainConfig& config);

struct TextDocument {
  std::vector<int64_t> ids;
  std::vector<bool> counts;      // for each id: whether it counts in the loss
  bool is_conversation = false;  // of messages

  int64_t size() const { return int64_t(ids.size()); }
  int64_t counted() const;
};

// Turns lines into documents, by a model's own files.
class TextEncoder {
 public:
  // The tokenizer and the config of a transformers folder or a GGUF file.
  explicit TextEncoder(const std::filesystem::path& model, const TextReading& reading = {});

  // A document; of a conversation maybe one for each answer. Throws Error: "`where`: expected …, found …".
  std::vector<TextDocument> encode(std::string_view line, const std::string& where) const;
  // A text to go on from: as a document begins, or the message of a user that is to be answered.
  std::vector<int64_t> prompt(const std::string& text, bool is_message) const;
  const Tokenizer& tokenizer() const { return tokenizer_; }
  bool has_end() const { return end_.has_value(); }                                        // a token that ends a text
  const ChatTemplate* chat_template() const { return template_ ? &*template_ : nullptr; }  // null: the model has none

 private:
  std::vector<TextDocument> chat(const Conversation& conversation) const;
  TextDocument completion(const std::string& prompt, const std::string& completion) const;
  TextDocument text(const std::string& text) const;
  std::vector<int64_t> opening(const std::string& text) const;
  bool is_ended(const std::vector<int64_t>& ids) const;

  std::string model_;
  TrainTurns turns_;
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> template_;  // none if the model has none that can be run:
  std::string no_template_;               // why there is none
  std::optional<int64_t> end_;
  bool puts_end_;  // the tokenizer itself, behind each text
  int64_t vocabulary_;
};

struct TextDataset {
  std::vector<TextDocument> documents;  // in the order of the files, none longer than asked for
  std::string sha256;                   // of the files' contents
  std::vector<DataFile> files;
  int64_t tokens = 0, counted = 0;
  int64_t longest = 0;
  int64_t conversations = 0;  // documents of messages
  // The fate of long documents, and how many documents or pieces were left out since none of their tokens counts.
  int64_t cut = 0, cut_tokens = 0, split = 0, left_out = 0;

  // All faults in the lines are one Error that names the files and the lines.
  static TextDataset read(const std::vector<std::string>& files, const TextEncoder& encoder, int64_t sequence_length,
                          LongDocuments long_documents, const Progress& progress = {});

  std::vector<int64_t> lengths() const;
  // "120 documents, 34567 tokens, 41 % of them in the loss; 3 were cut and lost 210 tokens"
  std::string describe() const;

 private:
  void add(TextDocument document, int64_t sequence_length, LongDocuments long_documents, const std::string& where);
  void keep(TextDocument document);
};

}  // namespace wick
