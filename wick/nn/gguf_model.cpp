#include "wick/nn/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

struct Names {
  std::string_view gguf, transformers;
};

constexpr Names kOfModel[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr Names kOfBlock[] = {{"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
                              {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
                              {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
                              {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
                              {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                              {"ffn_down", "mlp.down_proj"}};

constexpr const char* kArchitecture = "general.architecture";

// Copies row to_row(head, i) of each head of the result from row i of w's.
template <class F>
Tensor with_rows(const Tensor& w, int64_t heads, const F& to_row) {
  check(heads > 0 && w.rank() >= 1 && w.dim(0) % (2 * heads) == 0, "the rows of {} are not {} of an even width",
        w.shape(), count_of(heads, "head"));
  const Tensor from = w.to(host_memory()), to = Tensor::empty(w.shape(), w.dtype());
  const int64_t width = w.dim(0) / heads;
  const auto row_bytes = size_t(bytes_of(w.dtype(), w.numel()) / w.dim(0));
  for (int64_t row = 0; row < w.dim(0); ++row)
    std::memcpy(to.data<char>() + size_t(row / width * width + to_row(row % width, width)) * row_bytes,
                from.data<char>() + size_t(row) * row_bytes, row_bytes);
  return to.to(w.memory());
}

// The facts of one file, under its architecture's prefix.
class Facts {
 public:
  explicit Facts(const GgufFile& file)
      : file_(file), metadata_(file.metadata()), architecture_(metadata_.text(kArchitecture)) {
    check(architecture_ == "llama" || architecture_ == "qwen2" || architecture_ == "qwen3",
          "{}: the model's architecture is {}; Wick supports llama, qwen2 and qwen3", metadata_.source(),
          quote(architecture_));
    check(metadata_.integer_or(key("expert_count"), 0) == 0, "{}: the model has experts, which Wick does not support",
          metadata_.source());
  }

  nlohmann::ordered_json config() const {
    const bool windowed = architecture_ == "llama" && metadata_.integer_or(key("attention.sliding_window"), 0) > 0;
    const std::string type = windowed ? "mistral" : architecture_;
    const int64_t heads = positive("attention.head_count"), hidden = positive("embedding_length");
    const int64_t head_dim = metadata_.integer_or(key("attention.key_length"), hidden / heads, kPositive);
    nlohmann::ordered_json json{
        {"model_type", type},
        {"vocab_size", vocabulary()},
        {"hidden_size", hidden},
        {"intermediate_size", positive("feed_forward_length")},
        {"num_hidden_layers", positive("block_count")},
        {"num_attention_heads", heads},
        {"num_key_value_heads", metadata_.integer_or(key("attention.head_count_kv"), heads, kPositive)},
        {"head_dim", head_dim},
        {"max_position_embeddings", positive("context_length")},
        {"rms_norm_eps", metadata_.number(key("attention.layer_norm_rms_epsilon"))},
        {"rope_theta", theta()},
        {"hidden_act", "silu"},
        {"tie_word_embeddings", !file_.tensors().contains("output.weight")}};
    const int64_t turned = metadata_.integer_or(key("rope.dimension_count"), head_dim, kPositive);
    if (turned != head_dim) json["partial_rotary_factor"] = double(turned) / double(head_dim);
    if (windowed) json["sliding_window"] = positive("attention.sliding_window");
    if (const auto scaling = rope_scaling(head_dim); !scaling.is_null()) json["rope_scaling"] = scaling;
    if (type == "llama" || type == "qwen3") json["attention_bias"] = file_.tensors().contains("blk.0.attn_q.bias");
    if (type == "llama") json["mlp_bias"] = file_.tensors().contains("blk.0.ffn_gate.bias");
    add_ids(json);
    return json;
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }
  int64_t positive(std::string_view name) const { return metadata_.integer(key(name), kPositive); }
  double theta() const {
    const double theta = metadata_.number_or(key("rope.freq_base"), 10000);
    check(theta > 0, "{}: {} should be above 0, found {}", metadata_.source(), key("rope.freq_base"), theta);
    return theta;
  }

  int64_t vocabulary() const {
    const auto found = file_.tensors().find("token_embd.weight");
    check(found != file_.tensors().end() && found->second.shape.rank() == 2,
          "{}: expected a language model, found a file without a matrix \"token_embd.weight\"", metadata_.source());
    return found->second.shape[0];
  }

  // The scaling of positions as llama.cpp reads it (llama_model_base::load_hparams): a tensor with a factor for each
  // frequency (Llama 3), or one factor, which is linear unless a type is named, had another key once, and is none if 0.
  nlohmann::ordered_json rope_scaling(int64_t head_dim) const {
    const std::string kind = metadata_.text_or(key("rope.scaling.type"), "linear");
    const char* const factor_key =
        metadata_.has(key("rope.scaling.factor")) ? "rope.scaling.factor" : "rope.scale_linear";
    const double factor = metadata_.number_or(key(factor_key), 0);
    const bool stretched = kind != "none" && factor != 0 && factor != 1;
    check(metadata_.number_or(key("rope.scaling.attn_factor"), 1) == 1, "{}: {} is not 1, which Wick does not support",
          metadata_.source(), key("rope.scaling.attn_factor"));
    if (file_.tensors().contains("rope_freqs.weight")) {
      check(!stretched,
            "{}: positions are stretched twice, by {} and by \"rope_freqs.weight\"; Wick supports one of them",
            metadata_.source(), key(factor_key));
      return llama3_scaling(head_dim);
    }
    if (kind == "none" || (kind == "linear" && !stretched)) return {};
    return {{"rope_type", kind}, {"factor", factor}};
  }

  // The four numbers of a Llama 3 config that give the factors. llama.cpp's converter writes none of them, Wick three;
  // in all published models these have the defaults below. The fourth is computed from the factors, and all are
  // checked.
  nlohmann::ordered_json llama3_scaling(int64_t head_dim) const {
    const double low = metadata_.number_or(key(kLowFrequencyKey), 1);
    const double high = metadata_.number_or(key(kHighFrequencyKey), 4);
    const int64_t positions = metadata_.integer_or(key(kOriginalPositionsKey), 8192, kPositive);
    check(low > 0 && high > low, "{}: {} {} should be above {} {}, and that above 0", metadata_.source(),
          key(kHighFrequencyKey), high, key(kLowFrequencyKey), low);
    const std::vector<float> factors = file_.load("rope_freqs.weight").to_vector();
    const auto smooth = [&](size_t i) {
      const double wavelength = 2 * std::numbers::pi * std::pow(theta(), 2.0 * double(i) / double(head_dim));
      return std::clamp((double(positions) / wavelength - low) / (high - low), 0.0, 1.0);
    };
    const auto largest = std::max_element(factors.begin(), factors.end());
    check(!factors.empty() && int64_t(factors.size()) == head_dim / 2, "{}: \"rope_freqs.weight\" should hold {}",
          metadata_.source(), count_of(head_dim / 2, "factor"));
    if (*largest == 1) return {};
    const double s = smooth(size_t(largest - factors.begin()));
    const double exact = (1 - s) / (1 / double(*largest) - s), factor = std::round(exact * 1024) / 1024;
    check(factor >= 1 && std::isfinite(factor),
          "{}: the largest factor in \"rope_freqs.weight\" is {}, which Llama 3's scaling gives with no factor of its "
          "own; Wick knows no other",
          metadata_.source(), *largest);
    for (size_t i = 0; i < factors.size(); ++i) {
      const double expected = 1 / ((1 - smooth(i)) / factor + smooth(i));
      check(std::abs(factors[i] - expected) <= 1e-4 * expected,
            "{}: factor {} in \"rope_freqs.weight\" is {}, where Llama 3's scaling by {} has {}; Wick knows no other",
            metadata_.source(), i, factors[i], factor, expected);
    }
    return {{"rope_type", "llama3"},
            {"factor", factor},
            {"low_freq_factor", low},
            {"high_freq_factor", high},
            {"original_max_position_embeddings", positions}};
  }

  void add_ids(nlohmann::ordered_json& json) const {
    const IntegerRange ids{0, vocabulary() - 1};
    const auto id = [&](const char* name) { return metadata_.integer_or(name, -1, ids); };
    if (const int64_t bos = id("tokenizer.ggml.bos_token_id"); bos >= 0) json["bos_token_id"] = bos;
    std::vector<int64_t> ends;
    for (const char* name :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
      if (const int64_t end = id(name); end >= 0 && std::find(ends.begin(), ends.end(), end) == ends.end())
        ends.push_back(end);
    if (ends.size() == 1) json["eos_token_id"] = ends.front();
    if (ends.size() > 1) json["eos_token_id"] = ends;
  }

  const GgufFile& file_;
  const GgufMetadata& metadata_;
  std::string architecture_;
};

}  // namespace

// PREFIX N. + module + (.weight or .bias)
std::string gguf_name(const std::string& transformers_name) {
  constexpr std::string_view kBlock = "model.layers.";
  const std::string_view name = transformers_name;
  const size_t dot = name.rfind('.');
  if (dot == name.npos || (name.substr(dot) != ".weight" && name.substr(dot) != ".bias")) return "";
  const std::string_view suffix = name.substr(dot);
  std::string_view module = name.substr(0, dot);
  for (const Names& row : kOfModel)
    if (row.transformers == module) return fmt::format("{}{}", row.gguf, suffix);
  if (!module.starts_with(kBlock)) return "";
  module.remove_prefix(kBlock.size());
  const size_t digits = std::min(module.find_first_not_of("0123456789"), module.size());
  if (digits == 0 || digits == module.size() || module[digits] != '.') return "";
  for (const Names& row : kOfBlock)
    if (row.transformers == module.substr(digits + 1))
      return fmt::format("blk.{}.{}{}", module.substr(0, digits), row.gguf, suffix);
  return "";
}

bool is_language_model(const GgufFile& file) {
  return std::ranges::any_of(file.tensors(), [](const auto& entry) {
    return entry.first.starts_with("blk.") || entry.first == "output_norm.weight";
  });
}

bool is_language_model(const std::filesystem::path& path) {
  // A key, u32 8 for a string, u64 bytes and those. Files begin with it, before the tokenizer's long lists.
  std::string start(4096, '\0');
  start.resize(FileDescriptor(path).read_at(0, start.data(), start.size()));
  if (const size_t key = start.find(kArchitecture); key != start.npos) {
    const std::string_view value =
        std::string_view(start).substr(std::min(key + std::strlen(kArchitecture) + 12, start.size()));
    for (const char* architecture : {"llama", "qwen2", "qwen3"})
      if (value.starts_with(architecture)) return true;
  }
  return is_language_model(GgufFile::open(path));
}

TensorSource gguf_model_source(const std::shared_ptr<const GgufFile>& file) {
  TensorSource source = gguf_source(file);
  source.find = [find = source.find, file](const std::string& name, const Shape& wanted) {
    std::optional<StoredTensor> found = find(name, wanted);
    const int64_t heads = found ? heads_of_pairs(file->metadata(), name) : 0;
    if (heads > 0) {
      found->bytes = {};
      found->load = [load = found->load, heads](Memory& memory) {
        return pairs_to_halves(load(host_memory()), heads).to(memory);
      };
    }
    return found;
  };
  return renamed(source, gguf_name);
}

std::string config_json(const GgufFile& file) { return Facts(file).config().dump(2); }

int64_t heads_of_pairs(const GgufMetadata& metadata, const std::string& name) {
  if (!name.starts_with("blk.") || metadata.text_or(kArchitecture, "") != "llama") return 0;
  const bool q = name.ends_with(".attn_q.weight") || name.ends_with(".attn_q.bias");
  const bool k = name.ends_with(".attn_k.weight") || name.ends_with(".attn_k.bias");
  if (!q && !k) return 0;
  const int64_t heads = metadata.integer("llama.attention.head_count", kPositive);
  return q ? heads : metadata.integer_or("llama.attention.head_count_kv", heads, kPositive);
}

Tensor pairs_to_halves(const Tensor& w, int64_t heads) {
  return with_rows(w, heads, [](int64_t i, int64_t width) { return i / 2 + i % 2 * (width / 2); });
}
Tensor halves_to_pairs(const Tensor& w, int64_t heads) {
  return with_rows(w, heads, [](int64_t i, int64_t width) { return i % (width / 2) * 2 + i / (width / 2); });
}

}  // namespace wick
