#include "wick/pipelines/language_model.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "wick/io/gguf.h"
#include "wick/pipelines/gguf_tokenizer.h"

namespace wick {

Tokenizer load_tokenizer(const Checkpoint& model) {
  if (!model.is_gguf()) return Tokenizer::load(model.path());
  return Tokenizer::from_arrays(tokenizer_arrays(GgufFile::open(model.path()).metadata()), model.name());
}

LanguageModel LanguageModel::load(const Checkpoint& files, const LlamaOptions& options) {
  Tokenizer tokenizer = load_tokenizer(files);  // first: its errors are found quickly
  return {Llama::load(files, options), std::move(tokenizer)};
}

std::vector<int64_t> LanguageModel::stop_ids() const {
  std::vector<int64_t> ids = tokenizer.stop_ids();
  for (const int64_t id : model.config().eos_ids)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ids;
}

TextStream LanguageModel::stream(bool at_start) const {
  const auto stream = std::make_shared<TokenStream>(tokenizer, DecodeOptions{.at_start = at_start});
  return {[stream](int64_t id) { return stream->push(id); }, [stream] { return stream->finish(); }};
}

}  // namespace wick
