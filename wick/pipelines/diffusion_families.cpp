#include <algorithm>

#include "wick/pipelines/diffusion.h"

// Every family, a line each: NAME_family() of pipelines/NAME.cpp. The first one stands for models of none.
#define WICK_DIFFUSION_FAMILIES(FAMILY) FAMILY(sdxl) FAMILY(flux) FAMILY(sd3)

namespace wick {

#define WICK_DECLARED(name) DiffusionFamily name##_family();
WICK_DIFFUSION_FAMILIES(WICK_DECLARED)

const std::vector<DiffusionFamily>& diffusion_families() {
#define WICK_LISTED(name) name##_family(),
  static const std::vector<DiffusionFamily> all = {WICK_DIFFUSION_FAMILIES(WICK_LISTED)};
  return all;
}

const DiffusionFamily& diffusion_family(const Checkpoint& model) {
  const auto& all = diffusion_families();
  const auto found = std::ranges::find_if(all, [&](const DiffusionFamily& family) { return family.is_here(model); });
  return found == all.end() ? all.front() : *found;
}

std::unique_ptr<Diffusion> open_diffusion(const Checkpoint& model, const T5Options& t5) {
  return diffusion_family(model).open(model, t5);
}

NamedTensors Diffusion::ahead(const Tensor&, const NamedTensors&) const { return {}; }

Tensor Diffusion::predict_without(const std::vector<int64_t>&, const Tensor&, const Tensor&,
                                  const NamedTensors&) const {
  fail("{} has no layers to skip", denoiser_in_words());
}

}  // namespace wick
