// tokenizer.model: SentencePiece's ModelProto (sentencepiece_model.proto), the fields that BPE models need.

#include "wick/core/error.h"
#include "wick/io/protobuf.h"
#include "wick/io/quote.h"
#include "wick/text/tokenizer_spec.h"

namespace wick {
namespace {

using Tag = protozero::pbf_tag_type;
enum ModelProto : Tag { kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3 };
enum Piece : Tag { kText = 1, kScore = 2, kType = 3 };
enum TrainerSpec : Tag {
  kModelType = 3,
  kTreatWhitespaceAsSuffix = 24,
  kUnknownId = 40,
  kBosId = 41,
  kEosId = 42,
};
enum NormalizerSpec : Tag {
  kName = 1,
  kPrecompiledCharsmap = 2,
  kAddDummyPrefix = 3,
  kRemoveExtraWhitespaces = 4,
  kEscapeWhitespaces = 5,
};

Token read_piece(protozero::pbf_reader reader) {
  Token token;
  int32_t type = int32_t(TokenType::kNormal);
  while (reader.next()) {
    if (at_bytes(reader, kText))
      token.text = reader.get_string();
    else if (at_float(reader, kScore))
      token.score = reader.get_float();
    else if (at_number(reader, kType))
      type = reader.get_enum();
    else
      reader.skip();
  }
  check(type >= 1 && type <= int32_t(TokenType::kByte), "piece {}: expected a type from 1 to 6, found {}",
        quote(token.text), type);
  token.type = TokenType(type);
  return token;
}

void read_trainer_spec(TokenizerArrays& arrays, protozero::pbf_reader reader) {
  const char* const types[] = {"unigram", "BPE", "word", "char"};
  int32_t type = 1;
  arrays.unknown_token_id = 0, arrays.bos_token_id = 1, arrays.eos_token_id = 2;
  const auto id = [&]() -> std::optional<int64_t> {
    const int32_t value = reader.get_int32();
    return value < 0 ? std::nullopt : std::optional<int64_t>(value);
  };
  while (reader.next()) {
    if (at_number(reader, kModelType))
      type = reader.get_enum();
    else if (at_number(reader, kTreatWhitespaceAsSuffix))
      check(!get_flag(reader), "treat_whitespace_as_suffix is not supported");
    else if (at_number(reader, kUnknownId))
      arrays.unknown_token_id = id();
    else if (at_number(reader, kBosId))
      arrays.bos_token_id = id();
    else if (at_number(reader, kEosId))
      arrays.eos_token_id = id();
    else
      reader.skip();
  }
  check(type == 2, "a {} model is not supported; Wick knows BPE models",
        type >= 1 && type <= 4 ? types[type - 1] : "strange");
}

void read_normalizer_spec(TokenizerArrays& arrays, protozero::pbf_reader reader) {
  std::string name;
  bool is_identity = true, removes_spaces = true, escapes_spaces = true;
  arrays.add_space_prefix = true;
  while (reader.next()) {
    if (at_bytes(reader, kName))
      name = reader.get_string();
    else if (at_bytes(reader, kPrecompiledCharsmap))
      is_identity = reader.get_view().empty();
    else if (at_number(reader, kAddDummyPrefix))
      arrays.add_space_prefix = get_flag(reader);
    else if (at_number(reader, kRemoveExtraWhitespaces))
      removes_spaces = get_flag(reader);
    else if (at_number(reader, kEscapeWhitespaces))
      escapes_spaces = get_flag(reader);
    else
      reader.skip();
  }
  check(is_identity, "the normalizer {} is not supported; Wick knows identity", quote(name));
  check(!removes_spaces, "remove_extra_whitespaces is not supported");
  check(escapes_spaces, "escape_whitespaces = false is not supported");
}

TokenizerArrays read_model(std::string_view bytes) {
  TokenizerArrays arrays;
  arrays.model = "llama";
  bool has_trainer = false, has_normalizer = false;
  protozero::pbf_reader reader(bytes.data(), bytes.size());
  while (reader.next()) {
    if (at_bytes(reader, kPieces)) {
      const Token piece = read_piece(reader.get_message());
      arrays.tokens.push_back(piece.text);
      arrays.scores.push_back(piece.score);
      arrays.token_type.push_back(int32_t(piece.type));
      check(int64_t(arrays.tokens.size()) <= kMaxTokens, "more than {} pieces", kMaxTokens);
    } else if (at_bytes(reader, kTrainerSpec)) {
      read_trainer_spec(arrays, reader.get_message());
      has_trainer = true;
    } else if (at_bytes(reader, kNormalizerSpec)) {
      read_normalizer_spec(arrays, reader.get_message());
      has_normalizer = true;
    } else {
      reader.skip();
    }
  }
  check(has_trainer && has_normalizer && !arrays.tokens.empty(),
        "expected pieces, a trainer_spec and a normalizer_spec; is it a SentencePiece model?");
  return arrays;
}

// The format of Llama 3's tokenizer.model (tiktoken's): lines of a token in base64 and its rank.
bool is_tiktoken(std::string_view bytes) {
  constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  const size_t end = bytes.find_first_not_of(kBase64);
  return end != bytes.npos && end > 0 && bytes[end] == ' ' && bytes.substr(end + 1, 2) == "0\n";
}

}  // namespace

TokenizerSpec parse_sentencepiece(std::string_view bytes, const std::string& source) {
  check(!is_tiktoken(bytes), "{}: a tiktoken vocabulary is not supported; take the tokenizer.json of the same model",
        source);
  TokenizerArrays arrays;
  try {
    arrays = read_model(bytes);
  } catch (const protozero::exception&) {
    fail("{}: not a SentencePiece model, or cut short; copy the file again", source);
  } catch (const Error& error) {
    fail("{}: {}", source, error.what());
  }
  return spec_of_arrays(arrays, source);
}

}  // namespace wick
