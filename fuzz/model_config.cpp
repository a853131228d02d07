// Configurations of models of unknown origin: the first byte chooses the model, the next one of its components, and
// what follows is that component's JSON. Sizes that may be planned with, or an Error of one line.
#include <fmt/format.h>

#include "memory_file.h"
#include "wick/models/llama_config.h"
#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/known_models.h"

namespace {

using namespace wick;

void read_pictures(const KnownModel& known, size_t component, const std::string& json) {
  KnownModel changed = known;
  auto chosen = changed.configs.begin();
  std::advance(chosen, component % changed.configs.size());
  chosen->second = json;
  const std::unique_ptr<Diffusion> model = open_diffusion(changed.without_files());
  if (model->latents().channels <= 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string json(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::vector<const KnownModel*> models;
  for (const KnownModel& known : known_models())
    if (!known.configs.empty()) models.push_back(&known);
  fuzz::attempt([&] {
    const size_t chosen = data[0] % (models.size() + 1);
    if (chosen < models.size()) return read_pictures(*models[chosen], data[1], json);
    const LlamaConfig config = LlamaConfig::parse(Config::parse(json, "config.json"));
    if (config.rope_frequencies().size() != size_t(config.head_dim / 2)) std::abort();
    config.rope_factors();
  });
  return 0;
}
