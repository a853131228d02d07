// tokenizer.model and spiece.model: SentencePiece's ModelProto (sentencepiece_model.proto), the fields that BPE and
// unigram models need.

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

struct Model {
  TokenizerModel wanted;
  TokenizerArrays arrays{.model = "llama"};
  bool has_trainer = false, has_normalizer = false;
  PrecompiledMap map;
};

void read_trainer_spec(Model& model, protozero::pbf_reader reader) {
  const char* const types[] = {"unigram", "BPE", "word", "char"};
  int32_t type = 1;
  TokenizerArrays& arrays = model.arrays;
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
  const bool is_unigram = model.wanted == TokenizerModel::kUnigram;
  check(type == (is_unigram ? 1 : 2), "a {} model is not supported; Wick knows {} models",
        type >= 1 && type <= 4 ? types[type - 1] : "strange", is_unigram ? "unigram" : "BPE");
  model.has_trainer = true;
}

void read_normalizer_spec(Model& model, protozero::pbf_reader reader) {
  std::string name;
  protozero::data_view map;
  bool adds_prefix = true, removes_spaces = true, escapes_spaces = true;
  while (reader.next()) {
    if (at_bytes(reader, kName))
      name = reader.get_string();
    else if (at_bytes(reader, kPrecompiledCharsmap))
      map = reader.get_view();
    else if (at_number(reader, kAddDummyPrefix))
      adds_prefix = get_flag(reader);
    else if (at_number(reader, kRemoveExtraWhitespaces))
      removes_spaces = get_flag(reader);
    else if (at_number(reader, kEscapeWhitespaces))
      escapes_spaces = get_flag(reader);
    else
      reader.skip();
  }
  check(escapes_spaces, "escape_whitespaces = false is not supported");
  model.has_normalizer = true;
  if (model.wanted == TokenizerModel::kUnigram) {
    check(adds_prefix && removes_spaces, "{} = false is not supported",
          adds_prefix ? "remove_extra_whitespaces" : "add_dummy_prefix");
    model.map = PrecompiledMap::parse({map.data(), map.size()}, "precompiled_charsmap");
    return;
  }
  check(map.empty(), "the normalizer {} is not supported; Wick knows identity", quote(name));
  check(!removes_spaces, "remove_extra_whitespaces is not supported");
  model.arrays.add_space_prefix = adds_prefix;
}

void read_model(Model& model, std::string_view bytes) {
  TokenizerArrays& arrays = model.arrays;
  protozero::pbf_reader reader(bytes.data(), bytes.size());
  while (reader.next()) {
    if (at_bytes(reader, kPieces)) {
      const Token piece = read_piece(reader.get_message());
      arrays.tokens.push_back(piece.text);
      arrays.scores.push_back(float(piece.score));
      arrays.token_type.push_back(int32_t(piece.type));
      check(int64_t(arrays.tokens.size()) <= kMaxTokens, "more than {} pieces", kMaxTokens);
    } else if (at_bytes(reader, kTrainerSpec)) {
      read_trainer_spec(model, reader.get_message());
    } else if (at_bytes(reader, kNormalizerSpec)) {
      read_normalizer_spec(model, reader.get_message());
    } else {
      reader.skip();
    }
  }
  check(model.has_trainer && model.has_normalizer && !arrays.tokens.empty(),
        "expected pieces, a trainer_spec and a normalizer_spec; is it a SentencePiece model?");
}

// The spec of a unigram model, which finds no control tokens in a text, as SentencePiece does not, and ends with eos.
TokenizerSpec unigram_spec(Model model, const std::string& source) {
  model.arrays.add_bos_token = false;
  model.arrays.add_eos_token = true;
  TokenizerSpec spec = spec_of_arrays(model.arrays, source);
  spec.model = TokenizerModel::kUnigram;
  spec.sums_in_f32 = true;
  spec.by_scores = spec.replaces_each_byte = false;
  spec.added.clear();
  spec.normalizer = {
      {.kind = NormalizerStep::kSentencePiece, .map = std::make_shared<PrecompiledMap>(std::move(model.map))}};
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    Token& token = spec.tokens[id];
    check(!token.text.empty(), "{}: piece {}: expected a text, found none", source, id);
    check(token.type != TokenType::kByte && token.type != TokenType::kUserDefined,
          "{}: {}: byte and user-defined pieces of a unigram model are not supported", source, quote(token.text));
    token.is_piece = token.type == TokenType::kNormal;
  }
  return spec;
}

// The format of Llama 3's tokenizer.model (tiktoken's): lines of a token in base64 and its rank.
bool is_tiktoken(std::string_view bytes) {
  constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  const size_t end = bytes.find_first_not_of(kBase64);
  return end != bytes.npos && end > 0 && bytes[end] == ' ' && bytes.substr(end + 1, 2) == "0\n";
}

}  // namespace

TokenizerSpec parse_sentencepiece(std::string_view bytes, const std::string& source, TokenizerModel wanted) {
  check(!is_tiktoken(bytes), "{}: a tiktoken vocabulary is not supported; take the tokenizer.json of the same model",
        source);
  Model model{.wanted = wanted};
  try {
    read_model(model, bytes);
  } catch (const protozero::exception&) {
    fail("{}: not a SentencePiece model, or cut short; copy the file again", source);
  } catch (const Error& error) {
    fail("{}: {}", source, error.what());
  }
  return wanted == TokenizerModel::kUnigram ? unigram_spec(std::move(model), source)
                                            : spec_of_arrays(model.arrays, source);
}

}  // namespace wick
