// The tokenizers of language models: byte-pair encoding as Llama, Mistral and Qwen use it.
//
// There are two kinds. SentencePiece's (Llama 2, Mistral 0.x) writes spaces as U+2581 and characters without a piece as
// bytes; byte-level BPE (GPT-2, Llama 3, Qwen, Mistral's Tekken) cuts text into words and merges their bytes. Ids are
// those of HF tokenizers 0.22 where a tokenizer.json is read, and of SentencePiece 0.2 where a tokenizer.model or
// GGUF's "llama" arrays are; encoding takes O(n log n) for n bytes of any text. SentencePiece knows no control tokens
// in a text: text behind one gets its space as at the start, but not a second one: Mistral's "[INST] Hello" is [INST],
// "▁Hello".
//
// Text that is not UTF-8 is encoded as if U+FFFD stood in its place: one for each maximal subpart, as Python decodes
// with errors="replace", but one for each byte where SentencePiece's rules hold, since it does so itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

struct TokenizerSpec;

// A GGUF file's tokenizer: the keys `tokenizer.ggml.X` by their names X, and `tokenizer.chat_template`.
struct TokenizerArrays {
  std::string model;                // "llama": SentencePiece's BPE; "gpt2": byte-level BPE
  std::string pre;                  // for "gpt2": the way words are cut, "llama-bpe", "qwen2", ...
  std::vector<std::string> tokens;  // by id; for "gpt2" in GPT-2's alphabet
  std::vector<float> scores;        // for "llama": the highest is merged first
  std::vector<int32_t> token_type;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty
  std::vector<std::string> merges;  // for "gpt2": "left right", the first to be applied first
  std::optional<int64_t> bos_token_id, eos_token_id, unknown_token_id, padding_token_id;
  std::optional<int64_t> eot_token_id, eom_token_id;  // end of turn, of message: both stop an answer as eos does
  std::optional<bool> add_bos_token, add_eos_token, add_space_prefix;
  std::map<std::string, std::string> chat_templates;  // by name; "default" is `tokenizer.chat_template`
};

// A stretch of text. Control tokens ("<s>", "<|im_end|>") count only where they are spelt out in a part with
// `parse_special`: a user's words stay text.
struct TextPart {
  std::string_view text;
  bool parse_special = false;
};

// A place in the text of all parts, in bytes, and the tokens before it.
struct TextMark {
  size_t byte = 0;         // given
  size_t tokens = 0;       // that end at the place or before it
  bool is_inside = false;  // the next token began before the place

  // The tokens that stand for a byte of [start, end), if that is not empty, are those from start.tokens up to here.
  size_t end() const { return tokens + (is_inside ? 1 : 0); }
};

// The kind of ids before a text that is encoded by itself, which decides whether a space is put before it.
enum class Preceding { kNothing, kControl, kText };

struct EncodeOptions {
  bool add_special = true;     // the ids that the model's files put around a text, mostly <s> before it
  bool parse_special = false;  // as in TextPart
  Preceding preceding = Preceding::kNothing;
};

struct DecodeOptions {
  bool skip_special = true;  // else control tokens are spelt out
  bool at_start = true;      // false for ids that follow others: the first keeps its space
};

class Tokenizer {
 public:
  static constexpr size_t kMaxTextBytes = size_t{256} << 20;

  // Loads a transformers folder: tokenizer.json, else tokenizer.model; beside it, if they are there,
  // tokenizer_config.json, special_tokens_map.json, generation_config.json, chat_template.jinja and
  // additional_chat_templates/NAME.jinja. Throws Error naming the file, also for a component that is not supported.
  // `with_scores`: arrays() of a tokenizer.json has the scores of the tokenizer.model beside it, where their pieces are
  // the same; merges cannot always be written as scores.
  static Tokenizer load(const std::filesystem::path& folder, bool with_scores = false);
  // `source` names the GGUF file in messages.
  static Tokenizer from_arrays(const TokenizerArrays& arrays, const std::string& source);
  explicit Tokenizer(TokenizerSpec spec);  // filled by a reader: text/tokenizer_spec.h

  // Throws Error if there are more than kMaxTextBytes.
  std::vector<int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Encodes the parts as one text: words and merges cross their borders. options.parse_special is ignored.
  std::vector<int64_t> encode(std::span<const TextPart> parts, const EncodeOptions& options = {}) const;
  // The same, and fills the marks, which are in order of their bytes. options.add_special is false.
  std::vector<int64_t> encode(std::span<const TextPart> parts, const EncodeOptions& options,
                              std::span<TextMark> marks) const;

  // Returns valid UTF-8: bytes that form no character are U+FFFD. Ids without a token (models often have more rows than
  // their tokenizer) give nothing; negative ones and those from kMaxTokens on throw Error.
  std::string decode(std::span<const int64_t> ids, const DecodeOptions& options = {}) const;

  int64_t size() const;  // ids are below this
  // The id of a token as its file spells it: "▁the", "Ġthe", "<0x0A>".
  std::optional<int64_t> id_of(std::string_view piece) const;
  std::string_view piece(int64_t id) const;  // empty if no token has the id
  std::string bytes(int64_t id) const;       // the bytes it stands for in a text, maybe part of a character
  bool is_control(int64_t id) const;         // not text: <s>, </s>, <|im_start|>, ...

  std::optional<int64_t> bos_id() const, eos_id() const;
  const std::vector<int64_t>& stop_ids() const;  // any of these ends an answer: eos, end of turn

  // Chat templates in Jinja by their names (text/chat.h): "default", "tool_use", ...; empty if the files have none.
  const std::map<std::string, std::string>& chat_templates() const;
  // Texts of special tokens by transformers' names: "bos_token", "eos_token", "unk_token", "pad_token", ...
  const std::map<std::string, std::string>& special_texts() const;

  // The tokenizer as a GGUF file holds it, with one token for each of the `rows` of the model's table. Throws Error if
  // GGUF cannot express it: more tokens than rows, SentencePiece merges that no scores give, a way of cutting words
  // without a name there.
  TokenizerArrays arrays(int64_t rows) const;
  TokenizerArrays arrays() const { return arrays(size()); }

 private:
  friend class TokenStream;
  class Model;

  std::shared_ptr<const Model> model_;  // immutable: copies share it, threads too
};

// Turns ids into text as soon as it is whole: a character that spans several tokens comes with the last of them.
class TokenStream {
 public:
  explicit TokenStream(Tokenizer tokenizer, const DecodeOptions& options = {})
      : tokenizer_(std::move(tokenizer)), options_(options) {}

  std::string push(int64_t id);  // valid UTF-8, often empty
  std::string finish();          // the bytes held back, as U+FFFD; the stream then starts anew, as not at_start

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string held_;
};

}  // namespace wick
