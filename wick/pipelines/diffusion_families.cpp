#include <algorithm>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/diffusion.h"

// Every family, a line each: NAME_family() of pipelines/NAME.cpp.
#define WICK_DIFFUSION_FAMILIES(FAMILY) FAMILY(sdxl) FAMILY(flux) FAMILY(sd3)

namespace wick {

#define WICK_DECLARED(name) DiffusionFamily name##_family();
WICK_DIFFUSION_FAMILIES(WICK_DECLARED)

const std::vector<DiffusionFamily>& diffusion_families() {
#define WICK_LISTED(name) name##_family(),
  static const std::vector<DiffusionFamily> all = {WICK_DIFFUSION_FAMILIES(WICK_LISTED)};
  return all;
}

namespace {

// By the class of its transformer, or else by its own.
[[noreturn]] void fail_no_family(const Checkpoint& model) {
  constexpr const char* kSupported = "Wick supports FLUX.1, Stable Diffusion 3 and 3.5, and SDXL";
  const auto class_of = [](const Checkpoint& part) { return quote(part.config().text_or("_class_name", "")); };
  if (model.has("transformer") && model.component("transformer").has_config())
    fail("{}: its transformer is of the class {}; {}", model.name(), class_of(model.component("transformer")),
         kSupported);
  if (model.is_pipeline() && model.has_config())
    fail("{}: is of the class {}, without a transformer or UNet that Wick knows; {}", model.name(), class_of(model),
         kSupported);
  fail("{}: has no transformer or UNet that Wick knows; {}", model.name(), kSupported);
}

}  // namespace

const DiffusionFamily& diffusion_family(const Checkpoint& model) {
  const auto& all = diffusion_families();
  const auto found = std::ranges::find_if(all, [&](const DiffusionFamily& family) { return family.is_here(model); });
  if (found == all.end()) fail_no_family(model);
  return *found;
}

std::vector<std::string> adapted_components(const Checkpoint& model) {
  std::vector<std::string> names;
  for (const Component& component : diffusion_family(model).components)
    if (!component.lora_prefixes.empty()) names.push_back(component.name);
  return names;
}

std::unique_ptr<Diffusion> open_diffusion(const Checkpoint& model, const ReadingOptions& options) {
  return diffusion_family(model).open(model, options);
}

NamedTensors Diffusion::joined(const std::vector<NamedTensors>& texts) const {
  NamedTensors parts;
  for (const auto& [name, value] : texts.front()) {
    std::vector<Tensor> rows;
    for (const NamedTensors& text : texts) rows.push_back(text[name]);
    parts.add(name, rows.size() == 1 ? value : cat(rows, 0));
  }
  return parts;
}

NamedTensors Diffusion::ahead(const Tensor&, const NamedTensors&) const { return {}; }

Tensor Diffusion::predict_without(const std::vector<int64_t>&, const Tensor&, const Tensor&,
                                  const NamedTensors&) const {
  fail("{} has no layers to skip", denoiser_in_words());
}

}  // namespace wick
