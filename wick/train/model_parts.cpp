#include "wick/train/model_parts.h"

#include <algorithm>
#include <iterator>

namespace wick {
namespace {

struct Mark {
  std::string_view in, part;
};
// The first that fits decides.
constexpr Mark kMarks[] = {{"lora_te", "text encoders"},
                           {"text_encoder", "text encoders"},
                           {"input_blocks", "input blocks"},
                           {"down_blocks", "input blocks"},
                           {"middle_block", "middle block"},
                           {"mid_block", "middle block"},
                           {"output_blocks", "output blocks"},
                           {"up_blocks", "output blocks"},
                           {"double_blocks", "double blocks"},
                           {"single_transformer_blocks", "single blocks"},
                           {"single_blocks", "single blocks"},
                           {"joint_blocks", "joint blocks"},
                           {"transformer_blocks", "transformer blocks"},
                           {"embed_tokens", "embeddings"},
                           {"self_attn", "attention"},
                           {"mlp", "feed-forward"},
                           {"encoder.", "encoder"},
                           {"decoder.", "decoder"}};
constexpr std::string_view kOther = "other";

size_t place_of(std::string_view part) {
  return size_t(std::ranges::find(kMarks, part, &Mark::part) - std::begin(kMarks));
}

}  // namespace

std::string_view model_part(std::string_view parameter) {
  const auto* found =
      std::ranges::find_if(kMarks, [&](const Mark& mark) { return parameter.find(mark.in) != parameter.npos; });
  return found == std::end(kMarks) ? kOther : found->part;
}

ModelParts model_parts_of(const std::vector<std::string>& parameters) {
  ModelParts parts;
  for (const std::string& parameter : parameters) parts.names.emplace_back(model_part(parameter));
  std::ranges::stable_sort(parts.names, {}, place_of);
  parts.names.erase(std::unique(parts.names.begin(), parts.names.end()), parts.names.end());
  for (const std::string& parameter : parameters)
    parts.of.push_back(size_t(std::ranges::find(parts.names, model_part(parameter)) - parts.names.begin()));
  return parts;
}

}  // namespace wick
