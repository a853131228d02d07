#include "wick/models/forward.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/models/llama.h"
#include "wick/models/sdxl.h"

namespace wick {

namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

// An extent that a tensor must have: a number, or a letter, which stands for any number but the same one everywhere.
struct Extent {
  int64_t size = 0;
  std::string letter;
  Extent(int64_t n) : size(n) {}                                          // NOLINT: implicit
  Extent(const char* name, int64_t min = 1) : size(min), letter(name) {}  // NOLINT: implicit
};

// The tensors of the input file, checked as they are asked for.
class Inputs {
 public:
  Inputs(const fs::path& path, bool track, Memory& memory)
      : file_(SafetensorsFile::open(path)), track_(track), memory_(memory) {}

  // A float tensor, as f32 in the model's memory; tracked if gradients are wanted.
  Tensor variable(const std::string& name, const std::vector<Extent>& shape);
  // Numbers without a gradient, as f32; integers will do.
  Tensor constant(const std::string& name, const std::vector<Extent>& shape);
  Tensor ids(const std::string& name, const std::vector<Extent>& shape, int64_t vocabulary);
  Tensor targets(const std::string& name, const std::vector<Extent>& shape, int64_t vocabulary);
  Tensor timestep(int64_t batch);

  bool has(const std::string& name) const { return file_.has(name); }
  int64_t extent(const std::string& letter) const { return letters_.at(letter); }
  Tensors gradients(const Grads& grads) const;

 private:
  const TensorInfo& info(const std::string& name) const;
  Tensor load(const std::string& name, const std::vector<Extent>& shape);
  Tensor integers(const std::string& name, const std::vector<Extent>& shape);
  Tensor finite(const std::string& name, const Tensor& x) const;

  SafetensorsFile file_;
  bool track_;
  Memory& memory_;
  std::map<std::string, int64_t> letters_;
  Tensors variables_;
};

const TensorInfo& Inputs::info(const std::string& name) const {
  check(file_.has(name), "{}: has no tensor \"{}\"", file_.path().string(), name);
  return file_.tensors().at(name);
}

Tensor Inputs::load(const std::string& name, const std::vector<Extent>& wanted) {
  const Shape& found = info(name).shape;
  std::vector<std::string> expected;
  bool fits = size_t(found.rank()) == wanted.size();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Extent& e = wanted[i];
    const int64_t size = fits ? found[int(i)] : 0;
    const auto known = letters_.find(e.letter);
    const bool open = !e.letter.empty() && known == letters_.end();
    const int64_t exact = e.letter.empty() ? e.size : open ? 0 : known->second;
    expected.push_back(!open        ? std::to_string(exact)
                       : e.size > 1 ? fmt::format("{} >= {}", e.letter, e.size)
                                    : e.letter);
    fits = fits && (open ? size >= e.size : size == exact);
  }
  check(fits, "{}: \"{}\" should have shape [{}], found {}", file_.path().string(), name, fmt::join(expected, ", "),
        found);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!wanted[i].letter.empty()) letters_.emplace(wanted[i].letter, found[int(i)]);
  return file_.load(name);
}

Tensor Inputs::finite(const std::string& name, const Tensor& x) const {
  for (const float value : x.to_vector())
    check(std::isfinite(value), "{}: \"{}\" should hold finite numbers, found {}", file_.path().string(), name, value);
  return x;
}

Tensor Inputs::variable(const std::string& name, const std::vector<Extent>& shape) {
  const auto dtype = info(name).dtype;
  check(dtype && is_float(*dtype), "{}: \"{}\" should be F32, F16 or BF16, found {}", file_.path().string(), name,
        info(name).dtype_name);
  Tensor x = finite(name, cast(load(name, shape), DType::f32)).to(memory_);
  if (track_) variables_[name] = x = x.trainable();
  return x;
}

Tensor Inputs::constant(const std::string& name, const std::vector<Extent>& shape) {
  const Tensor x = load(name, shape);
  return finite(name, Tensor::of(x.to_vector(), x.shape())).to(memory_);
}

Tensor Inputs::integers(const std::string& name, const std::vector<Extent>& shape) {
  const auto dtype = info(name).dtype;
  check(dtype == DType::i64 || dtype == DType::i32, "{}: \"{}\" should be I64 or I32, found {}", file_.path().string(),
        name, info(name).dtype_name);
  return cast(load(name, shape), DType::i64);
}

Tensor Inputs::ids(const std::string& name, const std::vector<Extent>& shape, int64_t vocabulary) {
  Tensor ids = integers(name, shape);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t id = ids.data<int64_t>()[i];
    check(0 <= id && id < vocabulary, "{}: \"{}\" should hold ids from 0 to {}, found {}", file_.path().string(), name,
          vocabulary - 1, id);
  }
  return ids;
}

// Ids, or -100 where nothing is asked for.
Tensor Inputs::targets(const std::string& name, const std::vector<Extent>& shape, int64_t vocabulary) {
  constexpr int64_t kIgnored = -100;
  Tensor ids = integers(name, shape);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t id = ids.data<int64_t>()[i];
    check(id == kIgnored || (0 <= id && id < vocabulary), "{}: \"{}\" should hold ids from 0 to {}, or {}, found {}",
          file_.path().string(), name, vocabulary - 1, kIgnored, id);
  }
  return ids;
}

// One a sample, or one for all of them.
Tensor Inputs::timestep(int64_t batch) {
  const Shape& found = info("timestep").shape;
  if (found == Shape{}) return clone(expand(constant("timestep", {}), {batch}));
  if (found == Shape{1}) return clone(expand(constant("timestep", {1}), {batch}));
  return constant("timestep", {batch});
}

Tensors Inputs::gradients(const Grads& grads) const {
  Tensors all;
  for (const auto& [name, x] : variables_)
    if (const Tensor dx = grads[x]) all[name] = dx;
  return all;
}

// What a component put out, and the loss that the input `target` makes of it.
struct Outputs {
  Tensors tensors;
  std::function<Tensor(Inputs&)> loss;
};

// Of an output and a target of its shape.
std::function<Tensor(Inputs&)> squared_error(const Tensor& y) {
  return [y](Inputs& in) { return mse_loss(y, in.constant("target", {y.shape().begin(), y.shape().end()})); };
}

struct Folder {
  fs::path path;
  Adapter* adapter;
  WeightsOptions weights;

  Scope scope(const std::string& component) const {
    return Scope(Weights::open(path / component, weights), component, adapter);
  }
};

using Run = std::function<Outputs(Inputs&)>;  // the model, loaded

Run load_text_encoder(const Folder& folder, const std::string& component) {
  const ClipConfig config = ClipConfig::read(folder.path / component);
  const auto model = std::make_shared<ClipText>(folder.scope(component), config);
  return [=](Inputs& in) -> Outputs {
    const ClipOutput y = (*model)(in.ids("input_ids", {"B", "T"}, config.vocab));
    return {{{"last_hidden_state", y.last}, {"penultimate_hidden_state", y.penultimate}, {"pooled", y.pooled}},
            squared_error(y.last)};
  };
}

Run load_vae_encoder(const Folder& folder) {
  const VaeConfig config = VaeConfig::read(folder.path / "vae");
  const auto model = std::make_shared<VaeEncoder>(folder.scope("vae"), config);
  return [=](Inputs& in) -> Outputs {
    const Tensor x = in.variable("sample", {"B", config.in_channels, {"H", config.factor()}, {"W", config.factor()}});
    const Gaussian y = (*model)(to_channels_last(x));
    const Tensor mean = to_channels_first(y.mean);
    return {{{"mean", mean}, {"logvar", to_channels_first(y.logvar)}}, squared_error(mean)};
  };
}

Run load_vae_decoder(const Folder& folder) {
  const VaeConfig config = VaeConfig::read(folder.path / "vae");
  const auto model = std::make_shared<VaeDecoder>(folder.scope("vae"), config);
  return [=](Inputs& in) -> Outputs {
    const Tensor z = in.variable("latent", {"B", config.latent_channels, "h", "w"});
    const Tensor sample = to_channels_first((*model)(to_channels_last(z)));
    return {{{"sample", sample}}, squared_error(sample)};
  };
}

Run load_unet(const Folder& folder) {
  const UNetConfig config = UNetConfig::read(folder.path / "unet");
  const auto model = std::make_shared<SdxlUNet>(folder.scope("unet"), config);
  return [=](Inputs& in) -> Outputs {
    UNetInput x;
    x.sample = to_channels_last(in.variable("sample", {"B", config.in_channels, "h", "w"}));
    x.timestep = in.timestep(in.extent("B"));
    x.context = in.variable("encoder_hidden_states", {"B", "T", config.cross_attention_dim});
    x.text_embeds = in.variable("text_embeds", {"B", config.added_dim - kTimeIds * config.time_ids_dim});
    x.time_ids = in.constant("time_ids", {"B", kTimeIds});
    const Tensor sample = to_channels_first((*model)(x));
    return {{{"sample", sample}}, squared_error(sample)};
  };
}

// A language model has but one component. The mask is optional: without one all tokens count.
Run load_language_model(const fs::path& folder, const LlamaOptions& options) {
  const auto model = std::make_shared<Llama>(Llama::load(folder, options));
  return [=](Inputs& in) -> Outputs {
    const LlamaConfig& c = model->config();
    Memory& memory = *model->place().memory;
    const Tensor ids = in.ids("input_ids", {"B", "T"}, c.vocab);
    const TokenPlan plan = in.has("attention_mask")
                               ? TokenPlan::masked(in.ids("attention_mask", {"B", "T"}, 2), c, memory)
                               : TokenPlan::dense(ids.dim(0), ids.dim(1), c, memory);
    const Tensor hidden = (*model)(ids, plan);
    const auto loss = [model, hidden](Inputs& given) {
      const int64_t vocab = model->config().vocab;
      const Tensor target = given.targets("target", {"B", "T"}, vocab);
      return model->loss(hidden, TokenTargets::mean(target, vocab, hidden.memory()));
    };
    return {{{"logits", model->logits(hidden)}}, loss};
  };
}

const std::vector<std::string> kComponents = {"text_encoder", "text_encoder_2", "vae.encoder", "vae.decoder", "unet"};

Run load(const Folder& folder, const std::string& component) {
  if (component == "vae.encoder") return load_vae_encoder(folder);
  if (component == "vae.decoder") return load_vae_decoder(folder);
  if (component == "unet") return load_unet(folder);
  return load_text_encoder(folder, component);
}

std::unique_ptr<Adapter> open_adapter(const ModuleNames& names, const ForwardOptions& options) {
  auto adapter = std::make_unique<Adapter>(names);
  for (const LoraFile& lora : options.loras) adapter->add_file(lora.path, lora.strength, /*trainable=*/options.grad);
  return adapter;
}

// Names of modules in a LoRA file that belong to the components that are not loaded.
std::vector<std::string> elsewhere(const std::string& component) {
  std::vector<std::string> prefixes;
  for (const std::string& other : kComponents)
    if (other != component)
      for (const std::string& prefix : sdxl_lora_prefixes(other)) prefixes.push_back(prefix);
  return prefixes;
}

// A component and its adapter, which lives as long.
struct Loaded {
  std::unique_ptr<Adapter> adapter;
  Run run;
};

Loaded load_component(const fs::path& model, const std::string& component, const ForwardOptions& options,
                      Backend& backend) {
  Loaded loaded;
  if (LlamaConfig::is_here(model)) {
    if (!options.loras.empty()) loaded.adapter = open_adapter(llama_module_names(), options);
    loaded.run =
        load_language_model(model, {.dtype = options.dtype, .adapter = loaded.adapter.get(), .backend = &backend});
    return loaded;
  }
  check(std::find(kComponents.begin(), kComponents.end(), component) != kComponents.end(),
        "there is no component {}; the components are {}", quote(component), fmt::join(kComponents, ", "));
  if (!options.loras.empty())
    loaded.adapter = open_adapter(sdxl_module_names(UNetConfig::read(model / "unet")), options);
  const WeightsOptions weights{.dtype = options.dtype, .place = Residence::on(backend, options.dtype)};
  loaded.run = load({model, loaded.adapter.get(), weights}, component);
  if (loaded.adapter) loaded.adapter->check_complete(elsewhere(component));
  return loaded;
}

void add_gradients(Tensors& out, const Tensors& gradients) {
  for (const auto& [name, gradient] : gradients) out["grad." + name] = gradient;
}

}  // namespace

void run_forward(const fs::path& model, const std::string& component, const fs::path& in, const fs::path& out,
                 const ForwardOptions& options) {
  Backend& backend = options.backend ? *options.backend : cpu_backend();
  const bool grad = options.grad;
  Inputs inputs(in, grad, backend.memory());
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
