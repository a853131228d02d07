#include "wick/pipelines/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "wick/core/blocks.h"
#include "wick/io/count.h"
#include "wick/io/gguf.h"
#include "wick/models/llama.h"
#include "wick/nn/gguf_model.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/gguf_tokenizer.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Entries = GgufMetadata::Entries;

constexpr const char *kFileType = "general.file_type", *kQuantizationVersion = "general.quantization_version";
constexpr const char* kRopeFactors = "rope_freqs.weight";

GgufValue number(int64_t n) { return uint32_t(n); }

Entries facts_of(const LlamaConfig& c, const std::string& name) {
  const std::string architecture = c.model_type == "mistral" ? "llama" : c.model_type;
  const auto key = [&](const char* fact) { return fmt::format("{}.{}", architecture, fact); };
  Entries entries{{"general.architecture", architecture},
                  {"general.type", std::string("model")},
                  {"general.name", name},
                  {key("vocab_size"), number(c.vocab)},
                  {key("context_length"), number(c.positions)},
                  {key("embedding_length"), number(c.hidden)},
                  {key("block_count"), number(c.layers)},
                  {key("feed_forward_length"), number(c.intermediate)},
                  {key("attention.head_count"), number(c.heads)},
                  {key("attention.head_count_kv"), number(c.kv_heads)},
                  {key("attention.key_length"), number(c.head_dim)},
                  {key("attention.value_length"), number(c.head_dim)},
                  {key("attention.layer_norm_rms_epsilon"), c.eps},
                  {key("rope.dimension_count"), number(c.head_dim)},
                  {key("rope.freq_base"), float(c.rope_theta)}};
  if (c.window > 0) entries.emplace_back(key("attention.sliding_window"), number(c.window));
  const RopeScaling& s = c.rope_scaling;
  if (s.kind == RopeScaling::Kind::linear) {
    entries.emplace_back(key("rope.scaling.type"), std::string("linear"));
    entries.emplace_back(key("rope.scaling.factor"), float(s.factor));
  } else if (s.kind == RopeScaling::Kind::llama3) {
    entries.emplace_back(key(kOriginalPositionsKey), number(int64_t(s.original_positions)));
    entries.emplace_back(key(kLowFrequencyKey), float(s.low_frequency));
    entries.emplace_back(key(kHighFrequencyKey), float(s.high_frequency));
  }
  return entries;
}

// The tokenizer, with the ids that end an answer only by the model's config.
TokenizerArrays arrays_of(const fs::path& folder, const LlamaConfig& config) {
  TokenizerArrays arrays = Tokenizer::load(folder, /*with_scores=*/true).arrays(config.vocab);
  for (const int64_t id : config.eos_ids) {
    std::optional<int64_t>* const keys[] = {&arrays.eos_token_id, &arrays.eot_token_id, &arrays.eom_token_id};
    if (std::ranges::any_of(keys, [&](const auto* key) { return *key == id; })) continue;
    const auto free = std::ranges::find_if(keys, [](const auto* key) { return !key->has_value(); });
    if (free != std::end(keys)) **free = id;
  }
  return arrays;
}

Entries metadata_of_folder(const fs::path& folder, const LlamaConfig& config) {
  const bool all = std::ranges::count(config.windowed, true) == config.layers;
  check(config.window == 0 || (config.model_type == "mistral" && all),
        "{}: the model has layers with a sliding window, for which a GGUF file of {} has no place{}", folder.string(),
        config.model_type, all ? "" : " unless all of them do");
  Entries entries = facts_of(config, fs::canonical(folder).filename().string());
  for (auto& entry : tokenizer_entries(arrays_of(folder, config))) entries.push_back(std::move(entry));
  return entries;
}

// All metadata but that about the file itself.
Entries metadata_of_gguf(const GgufFile& file) {
  Entries entries;
  for (const auto& entry : file.metadata().entries())
    if (entry.first != "general.alignment" && !entry.first.starts_with("split.")) entries.push_back(entry);
  return entries;
}

// Whether an f16, here a scale of a block, is infinite or NaN.
bool is_infinite_half(uint16_t bits) { return (bits & 0x7c00) == 0x7c00; }

template <class Block>
bool has_infinite_scale(const Tensor& w) {
  const auto* blocks = w.data<Block>();
  return std::any_of(blocks, blocks + w.numel() / Block::kElements, [](const Block& block) {
    bool found = is_infinite_half(block.d);
    if constexpr (requires { block.dmin; }) found = found || is_infinite_half(block.dmin);
    return found;
  });
}

bool holds_finite(const Tensor& w) {
  bool finite = true;
  if (is_block(w.dtype()))
    for_block_type(w.dtype(), [&]<class Block>(Block*) { finite = !has_infinite_scale<Block>(w); });
  else if (w.dtype() == DType::f32)
    finite = std::all_of(w.data<float>(), w.data<float>() + w.numel(), [](float x) { return std::isfinite(x); });
  else if (is_float(w.dtype())) {
    const uint16_t exponent = w.dtype() == DType::f16 ? 0x7c00 : 0x7f80;
    finite = std::none_of(w.data<uint16_t>(), w.data<uint16_t>() + w.numel(),
                          [&](uint16_t bits) { return (bits & exponent) == exponent; });
  }
  return finite;
}

// The file's type number (llama.h, enum llama_ftype): the type of most elements of matrices. Of the mixes around q4_k
// and q5_k it is the small one (_S), which is nearest to a file of one type.
uint32_t file_type(const std::vector<GgufEntry>& tensors) {
  std::map<DType, int64_t> elements;
  for (const GgufEntry& tensor : tensors)
    if (tensor.shape.rank() == 2) elements[tensor.dtype] += tensor.shape.numel();
  const auto most = std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
  static const std::map<DType, uint32_t> kTypes = {{DType::f32, 0},   {DType::f16, 1},  {DType::bf16, 32},
                                                   {DType::q8_0, 7},  {DType::q4_0, 2}, {DType::q4_k, 14},
                                                   {DType::q5_k, 16}, {DType::q6_k, 18}};
  return kTypes.at(most->first);
}

class Conversion {
 public:
  Conversion(const Checkpoint& from, const ConvertOptions& options)
      : from_(from), options_(options), config_(LlamaConfig::read(from)), weights_(from.weights()) {
    if (from.is_gguf()) gguf_ = GgufFile::open(from.path());
    if (const auto factors = rope_factors()) tensors_.push_back(*factors);
    for (const auto& [name, shape] : llama_tensors(config_)) add(name, name, shape);
    if (options.unties && config_.tied)
      add("lm_head.weight", "model.embed_tokens.weight", {config_.vocab, config_.hidden});
    check(quantized_.kept == 0 || quantized_.matrices > 0,
          "{}: none of {} can be {}: rows are not whole blocks of {}; choose another --dtype", from.name(),
          count_of(quantized_.kept, "weight"), name_of(*options.dtype), block_of(*options.dtype).elements);
  }

  Weights::Quantized quantized() const { return quantized_; }

  void write(const fs::path& to) {
    Entries entries = gguf_ ? metadata_of_gguf(*gguf_) : metadata_of_folder(from_.path(), config_);
    if (options_.chat_template) put_chat_template(entries, *options_.chat_template);
    facts_ = GgufMetadata(from_.name(), entries);
    const auto put = [&](const char* key, uint32_t value) {
      std::erase_if(entries, [&](const auto& entry) { return entry.first == key; });
      entries.insert(entries.begin() + 1, {key, value});
    };
    if (!gguf_ || options_.dtype) put(kFileType, file_type(tensors_));
    if (std::ranges::any_of(tensors_, [](const GgufEntry& e) { return is_block(e.dtype); }))
      put(kQuantizationVersion, 2);
    save_gguf(to, entries, tensors_);
  }

 private:
  // A tensor that begins as the one that is stored under a name.
  void add(const std::string& name, const std::string& stored, const Shape& shape) {
    const DType dtype = dtype_of(stored, shape);
    tensors_.push_back({gguf_name(name), dtype, shape, [=, this] { return tensor(name, stored, shape, dtype); }});
  }

  DType dtype_of(const std::string& name, const Shape& shape) {
    const DType stored = weights_.stored_dtype(name, shape);
    if (shape.rank() == 1) return DType::f32;
    const bool is_decoded = weights_.is_decoded(name, shape);
    check(options_.dtype || !is_decoded,
          "{}: {} has a type that Wick reads and does not write; choose one with --dtype", from_.name(), name);
    if (!options_.dtype || !is_quantized(*options_.dtype)) return options_.dtype.value_or(stored);
    const bool has_whole_blocks = shape[1] % block_of(*options_.dtype).elements == 0;
    ++(has_whole_blocks ? quantized_.matrices : quantized_.kept);
    return has_whole_blocks ? *options_.dtype : is_decoded ? DType::bf16 : stored;
  }

  Tensor tensor(const std::string& name, const std::string& stored, const Shape& shape, DType dtype) const {
    Tensor w = weights_.read(stored, shape);
    check(holds_finite(w), "{}: {} holds values that are not finite numbers: the model is damaged", from_.name(), name);
    if (const auto edit = options_.edits.find(name); edit != options_.edits.end())
      w = edit->second(cast(w, DType::f32));
    w = cast(w, dtype);
    check(holds_finite(w), "{}: {} has values too large for {}; choose f32 or bf16", from_.name(), name,
          name_of(dtype));
    const int64_t heads = heads_of_pairs(facts_, gguf_name(name));
    return heads > 0 ? halves_to_pairs(w, heads) : w;
  }

  // The factors of a GGUF file, or of a Llama 3 config.
  std::optional<GgufEntry> rope_factors() const {
    if (gguf_ && gguf_->tensors().contains(kRopeFactors)) {
      const Tensor factors = cast(gguf_->load(kRopeFactors), DType::f32);
      return GgufEntry{kRopeFactors, DType::f32, factors.shape(), [factors] { return factors; }};
    }
    const std::vector<float> factors = config_.rope_factors();
    if (factors.empty()) return {};
    const Shape shape{int64_t(factors.size())};
    return GgufEntry{kRopeFactors, DType::f32, shape, [=] { return Tensor::of(factors, shape); }};
  }

  const Checkpoint& from_;
  const ConvertOptions& options_;
  LlamaConfig config_;
  Weights weights_;
  std::optional<GgufFile> gguf_;
  std::vector<GgufEntry> tensors_;
  Weights::Quantized quantized_;
  GgufMetadata facts_;  // of the file that is written
};

}  // namespace

Weights::Quantized convert_to_gguf(const Checkpoint& from, const fs::path& to, const ConvertOptions& options) {
  Conversion conversion(from, options);
  conversion.write(to);
  return conversion.quantized();
}

}  // namespace wick
