// A tokenizer's files in one form: readers fill it, Tokenizer runs it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/text/merge.h"
#include "wick/text/precompiled_map.h"
#include "wick/text/tokenizer.h"
#include "wick/text/words.h"

namespace wick {

inline constexpr int64_t kMaxTokens = 1 << 20;
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
inline constexpr std::string_view kSpacePiece = "\u2581";  // SentencePiece's space

// SentencePiece's numbers, and GGUF's.
enum class TokenType : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Token {
  std::string text;  // as spelt in the file; empty where no token has the id
  TokenType type = TokenType::kUnused;
  bool is_piece = false;  // of the model, so that merges may make it; added tokens are not
  double score = 0;
};

// A token that is found in the text before anything else is done to it.
struct AddedToken {
  int64_t id = 0;
  std::string text;
  bool is_control = false;
  bool is_normalized = false;                    // found in the normalised text
  bool strip_left = false, strip_right = false;  // takes the white space on that side along
};

struct NormalizerStep {
  enum Kind {
    kNfc,
    kNfkc,
    kPrepend,    // puts `to` in front
    kReplace,    // `from` by `to`
    kShorten,    // each run of two spaces or more, by `to`
    kStripLeft,  // takes the white space of that side away
    kStripRight,
    kPrecompiled,    // `map` as HF tokenizers applies it
    kSentencePiece,  // `map` and spaces as SentencePiece does it
  } kind;
  std::string from = {}, to = {};
  std::shared_ptr<const PrecompiledMap> map = {};
};

// The texts that get a space in front (Metaspace's prepend_scheme): none, the start of a text, or text behind control
// tokens too.
enum class SpacePrefix { kNever, kFirst, kAlways };

// An entry of `merges`: the pair of ids and the merged id; its rank is its index.
struct MergeRule {
  int32_t left, right, merged;
};

enum class TokenizerModel { kBpe, kUnigram };

// A token of a word, and its bytes there.
struct WordToken {
  int64_t id;
  size_t start, end;
};

struct TokenizerSpec {
  std::string source;  // the file, for messages
  std::vector<Token> tokens;
  std::vector<AddedToken> added;

  // Before the model.
  std::vector<NormalizerStep> normalizer;
  bool splits_at_white_space = false;  // a word is all between two stretches of it; the words are encoded one by one
  bool is_metaspace = false;           // spaces become U+2581, and space_prefix may put one more in front
  SpacePrefix space_prefix = SpacePrefix::kNever;
  bool splits_at_spaces = false;  // Metaspace: a word starts at each U+2581
  std::vector<WordPattern> patterns;
  bool is_byte_level = false;
  bool add_prefix_space = false;  // byte level: a plain space, unless there is one

  // The model: merges by rank, or by the score of the merged token; or a unigram model.
  TokenizerModel model = TokenizerModel::kBpe;
  bool sums_in_f32 = false;  // a unigram model's scores
  bool by_scores = false;
  bool has_scores = false;  // beside merges by rank, for a GGUF file
  std::vector<MergeRule> merges;
  bool ignore_merges = false;  // a word that is a token needs no merging
  bool byte_fallback = false, fuse_unknown = false;
  std::optional<int64_t> unknown;
  bool replaces_each_byte = false;  // U+FFFD for each byte that is not UTF-8

  // Around and after it.
  std::vector<int64_t> before, after;  // control tokens around a text
  bool strips_leading_space = false;   // decoding
  std::optional<int64_t> bos, eos;
  std::vector<int64_t> stops;
  std::map<std::string, std::string> chat_templates, special_texts;  // as Tokenizer has them
};

// Readers. They check ids, sizes and UTF-8; Error names the file, also where the model is not the one that is wanted.
TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& source,
                                   TokenizerModel wanted = TokenizerModel::kBpe);
TokenizerSpec parse_sentencepiece(std::string_view bytes, const std::string& source,
                                  TokenizerModel wanted = TokenizerModel::kBpe);
TokenizerSpec spec_of_arrays(const TokenizerArrays& arrays, const std::string& source);
TokenizerSpec read_tokenizer_folder(const std::filesystem::path& folder, bool with_scores);

TokenizerArrays arrays_of_spec(const TokenizerSpec& spec, int64_t rows);

// For the readers: sets the token of an id, which must be free and from 0 to kMaxTokens - 1.
void put_token(TokenizerSpec& spec, int64_t id, Token token);
// Adds a token from tokenizer.json's added_tokens or tokenizer_config.json's added_tokens_decoder.
void add_token(TokenizerSpec& spec, int64_t id, const nlohmann::json& json, const std::string& where);
// The two tokens of a merge: "left right", and in a tokenizer.json a pair or, before tokenizers 0.20, such a line.
std::pair<std::string, std::string> merge_of_line(std::string_view line, const std::string& where);
std::pair<std::string, std::string> merge_of_json(const nlohmann::json& merge, const std::string& where);
// Whether a token is spelt as a byte is: "<0x0A>".
bool is_byte_name(std::string_view text);
// The id of the token that is spelt so in the file.
std::optional<int64_t> find_token(const TokenizerSpec& spec, std::string_view text);
// Adds a chat template whose name is not there yet, valid UTF-8 of at most kMaxTemplateBytes. `where` stands in errors.
void add_chat_template(TokenizerSpec& spec, const std::string& name, std::string text, const std::string& where);
// Adds to spec.stops the control tokens that end a turn or a text by their well-known names, and sorts it.
void complete_stops(TokenizerSpec& spec);

}  // namespace wick
