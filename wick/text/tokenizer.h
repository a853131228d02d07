// The tokenizers of language models: byte-pair encoding as Llama, Mistral and Qwen use it.
//
// Two kinds. SentencePiece's (Llama 2, Mistral 0.x) writes spaces as U+2581 and characters without a piece as bytes;
// byte-level BPE (GPT-2, Llama 3, Qwen, Mistral's Tekken) cuts text into words and merges their bytes. Ids are those of
// HF tokenizers 0.22 where a tokenizer.json is read, and of SentencePiece 0.2 where a tokenizer.model or GGUF's "llama"
// arrays are; encoding takes O(n log n) for n bytes of any text. SentencePiece knows no control tokens in a text:
// behind one, what follows gets its space as at the start of a text, but not a second one: Mistral's "[INST] Hello" is
// [INST], "▁Hello".
//
// Text that is not UTF-8 is encoded as if U+FFFD stood in its place: one for each maximal subpart, as Python decodes
// with errors="replace", but one for each byte where SentencePiece's rules hold, since it does so itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

struct TokenizerSpec;

// What a GGUF file says of its tokenizer: the keys `tokenizer.ggml.X` by their names X, and `tokenizer.chat_template`.
struct TokenizerArrays {
  std::string model;                // "llama": SentencePiece's BPE; "gpt2": byte-level BPE
  std::string pre;                  // of "gpt2": how words are cut, "llama-bpe", "qwen2", ...
  std::vector<std::string> tokens;  // by id; of "gpt2" in GPT-2's alphabet
  std::vector<float> scores;        // of "llama": the highest is merged first
  std::vector<int32_t> token_type;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty
  std::vector<std::string> merges;  // of "gpt2": "left right", the first to be applied first
  std::optional<int64_t> bos_token_id, eos_token_id, unknown_token_id, padding_token_id;
  std::optional<int64_t> eot_token_id, eom_token_id;  // end a turn, a message: stop an answer as eos does
  std::optional<bool> add_bos_token, add_eos_token, add_space_prefix;
  std::string chat_template;
};

// A stretch of text. Control tokens ("<s>", "<|im_end|>") count only where they are written out in a part with
// `parse_special`: what a user types stays text.
struct TextPart {
  std::string_view text;
  bool parse_special = false;
};

// What ids stand before a text that is encoded by itself: tells whether a space is put before it.
enum class Preceding { kNothing, kControl, kText };

struct EncodeOptions {
  bool add_special = true;     // what the model's files put around a text, mostly <s> before it
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

  // A transformers folder: tokenizer.json, else tokenizer.model; beside it, as far as they are there,
  // tokenizer_config.json, special_tokens_map.json, generation_config.json and chat_template.jinja. Throws Error naming
  // the file, also for a component that is not supported. `with_scores`: arrays() of a tokenizer.json has the scores of
  // the tokenizer.model beside it, where their pieces are the same; merges can not always be written as scores.
  static Tokenizer load(const std::filesystem::path& folder, bool with_scores = false);
  // `source` names the GGUF file in messages.
  static Tokenizer from_arrays(const TokenizerArrays& arrays, const std::string& source);
  explicit Tokenizer(TokenizerSpec spec);  // of a reader: text/tokenizer_spec.h

  // Throws Error if there are more than kMaxTextBytes.
  std::vector<int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The parts side by side: words and merges go on across their borders. options.parse_special plays no part.
  std::vector<int64_t> encode(std::span<const TextPart> parts, const EncodeOptions& options = {}) const;

  // Valid UTF-8: bytes that are no character are U+FFFD. Ids that no token has (models often have more rows than their
  // tokenizer) give nothing; negative ones and those from kMaxTokens on throw Error.
  std::string decode(std::span<const int64_t> ids, const DecodeOptions& options = {}) const;

  int64_t size() const;  // ids are below this
  // Of a token as its file spells it: "▁the", "Ġthe", "<0x0A>".
  std::optional<int64_t> id_of(std::string_view piece) const;
  std::string_view piece(int64_t id) const;  // empty if no token has the id
  std::string bytes(int64_t id) const;       // what it stands for in a text, maybe a part of a character
  bool is_control(int64_t id) const;         // not text: <s>, </s>, <|im_start|>, ...

  std::optional<int64_t> bos_id() const, eos_id() const;
  const std::vector<int64_t>& stop_ids() const;  // any of these ends an answer: eos, end of turn
  bool is_stop(int64_t id) const;

  const std::string& chat_template() const;  // Jinja, empty if the files have none (text/chat.h)

  // The tokenizer as a GGUF file holds it, with a token for each of so many rows of the model's table. Throws Error if
  // a GGUF cannot: more tokens than rows, SentencePiece merges that no scores give, a way of cutting words that has no
  // name there.
  TokenizerArrays arrays(int64_t rows) const;
  TokenizerArrays arrays() const { return arrays(size()); }

 private:
  friend class TokenStream;
  class Model;

  std::shared_ptr<const Model> model_;  // immutable: copies share it, threads too
};

// Ids in, text out as soon as it is whole: a character that spans several tokens comes with the last of them.
class TokenStream {
 public:
  explicit TokenStream(Tokenizer tokenizer, const DecodeOptions& options = {})
      : tokenizer_(std::move(tokenizer)), options_(options) {}

  std::string push(int64_t id);  // valid UTF-8, often empty
  std::string finish();          // what was held back, as U+FFFD; the stream then starts anew, as not at_start

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string held_;
};

}  // namespace wick
