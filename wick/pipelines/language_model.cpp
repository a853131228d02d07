#include "wick/pipelines/language_model.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace wick {

LanguageModel LanguageModel::load(const std::filesystem::path& path, const LlamaOptions& options) {
  Tokenizer tokenizer = Tokenizer::load(path);  // first: it is quickly told if something is wrong with it
  return {Llama::load(path, options), std::move(tokenizer)};
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
