#include "wick/pipelines/extract_adapter.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "wick/io/quote.h"
#include "wick/models/llama.h"
#include "wick/nn/glob.h"
#include "wick/nn/low_rank.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/adapter_modules.h"
#include "wick/pipelines/diffusion.h"

namespace wick {
namespace {

// A model's tensors by path in Wick, "unet.mid_block.….weight".
class ModelTensors {
 public:
  explicit ModelTensors(const Checkpoint& model) : model_(model), is_text_(kind_of(model) == ModelKind::text) {
    if (is_text_) {
      const LlamaConfig config = LlamaConfig::read(model);
      default_targets_ = llama_default_targets();
      sources_.emplace("llama", model.source());
      return;
    }
    diffusion_ = open_diffusion(model);
    const LoraFormat format = diffusion_->lora();
    default_targets_ = format.default_targets;
    default_targets_.insert(default_targets_.end(), format.conv_targets.begin(), format.conv_targets.end());
    default_targets_.push_back("text_encoder*");
    metadata_ = format.metadata;
  }

  bool is_text() const { return is_text_; }
  const std::vector<std::string>& default_targets() const { return default_targets_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::string name() const { return model_.name(); }
  std::string denoiser() const { return is_text_ ? "" : diffusion_->denoiser(); }

  bool has_component(const std::string& name) const {
    return is_text_ || (model_.has(name) && model_.component(name).has_weights());
  }

  // In f32, on the host; nothing where there is no such tensor.
  Tensor load(const std::string& path, const Shape& shape) const {
    const std::string component = path.substr(0, path.find('.'));
    if (!sources_.contains(component)) sources_.emplace(component, diffusion_->source(component));
    const auto found = sources_.at(component).find(path.substr(component.size() + 1), shape);
    if (!found || !found->load) return {};
    const Tensor stored = cast(found->load(host_memory()), DType::f32);
    check(shape.empty() || stored.shape() == shape || stored.numel() == shape.numel(),
          "{}: {} has shape {}, and the other model's has {}: they are no models of one kind", name(), quote(path),
          stored.shape(), shape);
    return shape.empty() ? stored : reshape(contiguous(stored), shape);
  }

 private:
  Checkpoint model_;
  bool is_text_;
  std::unique_ptr<Diffusion> diffusion_;
  std::vector<std::string> default_targets_;
  std::map<std::string, std::string> metadata_;
  mutable std::map<std::string, TensorSource> sources_;
};

double squared_norm(const Tensor& x) {
  const float* values = x.data<float>();
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) sum += double(values[i]) * double(values[i]);
  return sum;
}

bool is_targeted(const std::vector<std::string>& targets, const std::string& path, std::vector<bool>& used) {
  bool wanted = false;
  for (size_t i = 0; i < targets.size(); ++i) {
    const bool excludes = targets[i].starts_with('-');
    if (!is_targeted_by(targets[i].substr(excludes ? 1 : 0), path)) continue;
    wanted = !excludes;
    used[i] = true;
  }
  return wanted;
}

class Extractor {
 public:
  Extractor(const Checkpoint& tuned, const Checkpoint& base, const Extraction& extraction)
      : tuned_(tuned), base_(base), extraction_(extraction), modules_(AdapterModules::of(base)) {
    check(tuned_.is_text() == base_.is_text() && tuned_.denoiser() == base_.denoiser(),
          "{} and {}: are no models of one kind", tuned_.name(), base_.name());
  }

  Extracted extract() {
    const Spelling spelling = base_.is_text() ? Spelling::peft : Spelling::kohya;
    found_.lora = {.name = tuned_.name(),
                   .format = base_.is_text() ? AdapterFormat::peft : AdapterFormat::kohya,
                   .metadata = base_.metadata(),
                   .base_model = base_.is_text() ? base_.name() : ""};
    const std::vector<std::string> targets = targeted();
    std::vector<bool> used(targets.size());
    std::vector<const NamedModule*> wanted;
    for (const NamedModule& module : modules_.all()) {
      if (!is_in_both(module.path)) continue;
      const bool can_be_named = module.matrix.rank() > 0 && !module.spelled(spelling).empty();
      if (is_targeted(targets, module.path, used) && can_be_named)
        wanted.push_back(&module);
      else
        count_left_out(module, "weight");
      count_left_out(module, "bias");
    }
    for (size_t i = base_.default_targets().size(); i < targets.size(); ++i)
      check(used[i], "--targets: {} matches no module of this model", quote(targets[i]));
    for (size_t i = 0; i < wanted.size(); ++i) {
      add(*wanted[i], wanted[i]->spelled(spelling).front()->name);
      if (extraction_.on_module) extraction_.on_module(i + 1, wanted.size());
    }
    check(!found_.lora.loras.empty(), "{} and {}: none of {} targeted modules differs", tuned_.name(), base_.name(),
          wanted.size());
    found_.energy = held_ / all_;
    if (!base_.is_text())
      found_.lora.metadata["ss_network_dim"] = found_.lora.metadata["ss_network_alpha"] =
          fmt::format("{}", extraction_.rank);
    return std::move(found_);
  }

 private:
  std::vector<std::string> targeted() const {
    std::vector<std::string> all = base_.default_targets();
    all.insert(all.end(), extraction_.targets.begin(), extraction_.targets.end());
    return all;
  }

  bool is_in_both(const std::string& path) const {
    const std::string component = path.substr(0, path.find('.'));
    return tuned_.has_component(component) && base_.has_component(component);
  }

  void count_left_out(const NamedModule& module, const char* tensor) {
    const std::string path = module.path + "." + tensor;
    const bool is_matrix = module.matrix.rank() > 0 && std::string_view(tensor) == "weight";
    const Tensor a = base_.load(path, is_matrix ? module.matrix : Shape());
    if (!a) return;
    const Tensor b = tuned_.load(path, a.shape());
    if (b && a.to_vector() != b.to_vector()) ++found_.left_out;
  }

  void add(const NamedModule& module, const std::string& name) {
    const std::string path = module.path + ".weight";
    const Shape matrix{module.matrix[0], module.matrix.numel() / module.matrix[0]};
    const Tensor before = base_.load(path, module.matrix), after = tuned_.load(path, module.matrix);
    check(bool(before) == bool(after), "{}: lacks {}, which {} has", (before ? tuned_ : base_).name(), quote(path),
          (before ? base_ : tuned_).name());
    if (!before) return;
    const Tensor change = reshape(after - before, matrix);
    const double energy = squared_norm(change);
    check(std::isfinite(energy), "{} and {}: the difference of {} is not finite", tuned_.name(), base_.name(),
          quote(path));
    if (energy == 0) {
      ++found_.unchanged;
      return;
    }
    const int64_t rank = std::min({extraction_.rank, matrix[0], matrix[1]});
    const SingularParts parts = SingularParts::of_largest(change, rank);
    for (const double value : parts.values()) held_ += value * value;
    all_ += energy;
    const LowRank nearest = parts.nearest(rank);
    StoredLora& lora = found_.lora.loras[name];
    lora = {nearest.down, nearest.up, double(rank)};
    if (module.matrix.rank() != 4) return;
    Shape down = module.matrix;
    down[0] = rank;
    lora.down = reshape(lora.down, down);
    lora.up = reshape(lora.up, {matrix[0], rank, 1, 1});
  }

  ModelTensors tuned_, base_;
  const Extraction& extraction_;
  AdapterModules modules_;
  Extracted found_{};
  double held_ = 0, all_ = 0;
};

}  // namespace

Extracted extract_lora(const Checkpoint& tuned, const Checkpoint& base, const Extraction& extraction) {
  return Extractor(tuned, base, extraction).extract();
}

}  // namespace wick
