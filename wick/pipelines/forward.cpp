#include "wick/pipelines/forward.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "wick/io/quote.h"
#include "wick/models/llama.h"
#include "wick/pipelines/convert_adapter.h"
#include "wick/pipelines/diffusion.h"

namespace wick {

namespace {

namespace fs = std::filesystem;

// A language model has but one component. The mask is optional: without one all tokens count.
ComponentRun load_language_model(const Checkpoint& folder, const LlamaOptions& options) {
  const Llama model = Llama::load(folder, options);
  return [=](ComponentInputs& in) -> ComponentOutputs {
    const LlamaConfig& c = model.config();
    Memory& memory = *model.place().memory;
    const Tensor ids = in.ids("input_ids", {"B", "T"}, c.vocab);
    const TokenPlan plan = in.has("attention_mask")
                               ? TokenPlan::masked(in.ids("attention_mask", {"B", "T"}, 2), c, memory)
                               : TokenPlan::dense(ids.dim(0), ids.dim(1), c, memory);
    const Tensor hidden = model(ids, plan);
    const auto loss = [model, hidden](ComponentInputs& given) {
      const int64_t vocab = model.config().vocab;
      const Tensor target = given.ids("target", {"B", "T"}, vocab, /*ignored=*/-100);
      return model.loss(hidden, TokenTargets::mean(target, vocab, hidden.memory()));
    };
    return {{{"logits", model.logits(hidden)}}, loss};
  };
}

// Names of modules in a LoRA file that belong to the components that are not loaded.
std::vector<std::string> elsewhere(const std::vector<Component>& components, const std::string& loaded) {
  std::vector<std::string> prefixes;
  for (const Component& c : components)
    if (c.name != loaded) prefixes.insert(prefixes.end(), c.lora_prefixes.begin(), c.lora_prefixes.end());
  return prefixes;
}

// A component and its adapter, which lives as long.
struct Loaded {
  std::unique_ptr<Adapter> adapter;
  ComponentRun run;
};

const Component& find_component(const Checkpoint& model, const std::string& name) {
  const std::vector<Component>& components = diffusion_family(model).components;
  const auto component = std::ranges::find(components, name, &Component::name);
  check(component != components.end(), "there is no component {}; the components are {}", quote(name),
        fmt::join(component_names(model), ", "));
  return *component;
}

Loaded load_component(const Checkpoint& model, const std::string& name, const ForwardOptions& options,
                      Backend& backend) {
  Loaded loaded;
  const auto open_adapter = [&](ModuleNames names, const std::vector<LoraFile>& loras) {
    loaded.adapter = std::make_unique<Adapter>(std::move(names), loras, /*trainable=*/options.grad);
  };
  if (kind_of(model) == ModelKind::text) {
    if (!options.loras.empty()) open_adapter(llama_module_names(), with_gguf_read(options.loras, model));
    loaded.run =
        load_language_model(model, {.dtype = options.dtype, .adapter = loaded.adapter.get(), .backend = &backend});
    return loaded;
  }
  const Component& component = find_component(model, name);
  if (!options.loras.empty()) open_adapter(diffusion_family(model).module_names(model), options.loras);
  const WeightsOptions weights{.dtype = options.dtype, .place = Residence::on(backend, options.dtype)};
  loaded.run = component.load({model, loaded.adapter.get(), weights});
  if (loaded.adapter) loaded.adapter->check_complete(elsewhere(diffusion_family(model).components, name));
  return loaded;
}

void add_gradients(Tensors& out, const Tensors& gradients) {
  for (const auto& [name, gradient] : gradients) out["grad." + name] = gradient;
}

}  // namespace

std::vector<std::string> component_names(const Checkpoint& model) {
  std::vector<std::string> names;
  for (const Component& c : diffusion_family(model).components) names.push_back(c.name);
  return names;
}

void run_forward(const Checkpoint& model, const std::string& component, const fs::path& in, const fs::path& out,
                 const ForwardOptions& options) {
  if (kind_of(model) == ModelKind::pictures) {
    const Component& tokenizer = find_component(model, component);
    check_usage(!tokenizer.load_tokenizer || (options.loras.empty() && !options.grad),
                "--component {}: a tokenizer takes neither --lora nor --grad", component);
    if (tokenizer.load_tokenizer) return encode_lines(in, out, tokenizer.load_tokenizer(model));
  }
  Backend& backend = options.backend ? *options.backend : cpu_backend();
  const bool grad = options.grad;
  ComponentInputs inputs(in, grad, backend.memory());
  const Loaded loaded = load_component(model, component, options, backend);

  std::optional<Tape> tape;
  if (grad) tape.emplace();
  auto [tensors, loss_of] = loaded.run(inputs);
  if (grad) {
    const Tensor loss = loss_of(inputs);
    const Grads grads = tape->backward(loss);
    tensors["loss"] = reshape(loss.detached(), {});
    add_gradients(tensors, inputs.gradients(grads));
    if (loaded.adapter) add_gradients(tensors, loaded.adapter->gradients(grads));
  }
  save_safetensors(out, tensors);
}

}  // namespace wick
