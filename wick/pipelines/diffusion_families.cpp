#include <algorithm>

#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/sdxl.h"

namespace wick {

const std::vector<DiffusionFamily>& diffusion_families() {
  static const std::vector<DiffusionFamily> all = {
      sdxl_family(),
  };
  return all;
}

const DiffusionFamily& diffusion_family(const Checkpoint& model) {
  const auto& all = diffusion_families();
  const auto found = std::ranges::find_if(all, [&](const DiffusionFamily& family) { return family.is_here(model); });
  return found == all.end() ? all.front() : *found;
}

std::unique_ptr<Diffusion> open_diffusion(const Checkpoint& model) { return diffusion_family(model).open(model); }

}  // namespace wick
