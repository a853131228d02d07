#include "wick/pipelines/adapter_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/adapter_types.h"
#include "wick/nn/dora.h"
#include "wick/nn/low_rank.h"
#include "wick/nn/peft.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/adapter_modules.h"
#include "wick/pipelines/adapter_programs.h"

namespace wick {
namespace {

struct Module {
  std::map<std::string_view, std::string> keys = {};  // by the suffix that Wick writes
  std::string kind = {};
  const AdapterAlgorithm* algorithm = nullptr;
  bool is_boft = false;

  bool has_core() const { return has(".lora_mid.weight") || has(".hada_t1") || has(".lokr_t2"); }
  bool has(std::string_view suffix) const { return keys.contains(suffix); }
};

std::string_view written_suffix(const AdapterKey& key) {
  if (key.algorithm) return key.algorithm->factors()[key.factor].suffixes.front();
  return key.name == "alpha" ? ".alpha" : key.name == "scalar" ? ".scalar" : kMagnitudeKey;
}

class Report {
 public:
  explicit Report(const std::filesystem::path& path)
      : settings_(LoraSettings::beside(lora_weights(path))), file_(SafetensorsFile::open(lora_weights(path))) {
    if (!settings_.config) settings_.read_header(file_);
    check_adapter_types(file_);
    check_extents(file_);
    for (const auto& [key, info] : file_.tensors()) {
      if (is_bundled_embedding(key)) {
        report_.embeddings.push_back(key);
        continue;
      }
      const auto has = [&](const std::string& other) { return file_.tensors().contains(other); };
      const auto parsed = parse_adapter_key(key, has);
      if (!parsed) continue;
      Module& module = modules_[std::string(parsed->module)];
      module.keys[written_suffix(*parsed)] = key;
      if (!parsed->algorithm) continue;
      module.kind = kind_of(*parsed);
      module.algorithm = parsed->algorithm;
    }
    std::erase_if(modules_, [](const auto& entry) { return entry.second.kind.empty(); });
    for (auto& [base, module] : modules_) refine(module);
  }

  AdapterReport make() {
    AdapterFile names{.name = file_.path().string(), .format = AdapterFormat::kohya};
    for (const auto& [base, module] : modules_) names.others[base + ".alpha"] = {};
    if (std::ranges::any_of(modules_, [](const auto& m) { return m.first.starts_with(kPeftPrefix); }))
      for (const auto& [base, module] : modules_) names.loras[base] = {zeros({1, 1}), zeros({1, 1}), 1};
    known_ = AdapterModules::likeliest(names);
    family_ = likeliest_family(names);
    report_.modules = int64_t(modules_.size());
    for (const auto& [base, module] : modules_) add(base, module);
    for (const auto& [group, count] : groups_) {
      const auto& [component, kind, rank, alpha] = group;
      report_.groups.push_back({component, kind, rank, alpha, count});
    }
    for (const auto& [block, sum] : blocks_) report_.blocks.push_back({block.second, std::sqrt(sum)});
    find_duplicates();
    add_programs();
    return std::move(report_);
  }

 private:
  // Adds to the kind what a magnitude, a core, biases or a factor's rank tell.
  void refine(Module& module) const {
    const bool is_lora = module.kind == lora_algorithm().name();
    if (module.has(kMagnitudeKey)) module.kind = is_lora ? "DoRA" : module.kind + ", DoRA";
    if (module.has_core()) module.kind += ", Tucker";
    if (module.has(".lora_B.bias")) module.kind += ", biases";
    if (const auto blocks = module.keys.find(".oft_blocks");
        blocks != module.keys.end() && file_.tensors().at(blocks->second).shape.rank() == 4) {
      module.kind = "BOFT";
      module.is_boft = true;
    }
  }

  Tensor load(const std::string& key) const { return file_.load_numbers(key); }
  Tensor matrix(const Module& module, std::string_view suffix) const {
    const std::string& key = module.keys.at(suffix);
    const Tensor x = load(key);
    check(x.rank() >= 2, "{}: {} should be a matrix, found shape {}; the file is damaged", file_.path().string(),
          quote(key), x.shape());
    return x.rank() == 2 ? x : reshape(x, {x.dim(0), -1});
  }
  float number(const Module& module, std::string_view suffix) const {
    const std::string& key = module.keys.at(suffix);
    const Tensor x = load(key);
    check(x.numel() == 1, "{}: {} should be one number, found shape {}; the file is damaged", file_.path().string(),
          quote(key), x.shape());
    return x.item();
  }
  // Matrices of which one has a factor's columns and the other its rows.
  std::pair<Tensor, Tensor> factors(const Module& module, std::string_view up, std::string_view down) const {
    const std::pair<Tensor, Tensor> both{matrix(module, up), matrix(module, down)};
    check(both.first.dim(1) == both.second.dim(0), "{}: {} and {} have different ranks, {} and {}; the file is damaged",
          file_.path().string(), quote(module.keys.at(up)), quote(module.keys.at(down)), both.first.dim(1),
          both.second.dim(0));
    return both;
  }
  double norm_of_product(const Module& module, std::string_view up, std::string_view down) const {
    const auto [u, d] = factors(module, up, down);
    return wick::norm_of_product(u, d);
  }

  std::string path_of(const std::string& base) const {
    const AdapterModules::Found found = known_ ? known_->find(base) : AdapterModules::Found{};
    return found.module ? found.module->path : base;
  }

  std::string component_of(const std::string& base) const {
    const std::string path = path_of(base);
    if (path != base) return path.substr(0, path.find('.'));
    if (family_)
      if (const std::string component = wick::component_of(*family_, base); !component.empty()) return component;
    return base.starts_with("lora_te") ? "text_encoder" : "model";
  }

  std::optional<int64_t> rank_of(const Module& module) const {
    const auto extent = [&](std::string_view suffix) -> std::optional<int64_t> {
      if (!module.has(suffix)) return {};
      const Shape& shape = file_.tensors().at(module.keys.at(suffix)).shape;
      return shape.rank() > 0 ? std::optional(shape[0]) : std::nullopt;
    };
    for (const char* suffix : {".lora_down.weight", ".hada_w1_b", ".lokr_w2_b", ".lokr_w1_b"})
      if (const auto rank = extent(suffix)) return rank;
    return {};
  }

  std::optional<double> alpha_of(const std::string& base, const Module& module) const {
    if (module.has(".alpha")) {
      const Tensor alpha = load(module.keys.at(".alpha"));
      const bool counts = alpha.numel() == 1 && (rank_of(module) || std::isfinite(alpha.item()));
      return counts ? std::optional(double(alpha.item())) : std::nullopt;
    }
    const auto [config, name] = settings_.of(base, file_.path().string());
    if (!config) return {};
    return double(config->alpha_of(name, rank_of(module).value_or(1)));
  }

  static bool has_all(const Module& m, std::initializer_list<std::string_view> suffixes) {
    return std::ranges::all_of(suffixes, [&](std::string_view suffix) { return m.has(suffix); });
  }

  // The Frobenius norm of the change; none where that depends on the base.
  std::optional<double> norm_of(const std::string& base, const Module& m) const {
    const double rank = double(rank_of(m).value_or(1)), scalar = m.has(".scalar") ? number(m, ".scalar") : 1;
    const double scale = std::abs(alpha_of(base, m).value_or(rank) / rank * scalar);
    if (m.has(".lora_down.weight") && m.has(".lora_up.weight") && !m.has(".lora_mid.weight"))
      return scale * norm_of_product(m, ".lora_up.weight", ".lora_down.weight");
    if (has_all(m, {".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".hada_w2_b"}) && !m.has(".hada_t1"))
      return scale * norm_of_loha(m);
    if (m.has(".lokr_w1") || m.has(".lokr_w1_a")) return norm_of_lokr(m, scale);
    const bool is_difference = m.kind == full_algorithm().name() || m.kind == norm_algorithm().name();
    if (is_difference && !m.has(".set_weight")) {
      double sum = 0;
      for (const auto& [suffix, key] : m.keys)
        for (const float v : load(key).to_vector()) sum += double(v) * double(v);
      return std::sqrt(sum);
    }
    return {};
  }

  // (a1 b1) * (a2 b2) is a product again: of rows of a1 and a2 multiplied with each other, and columns of b1 and b2.
  // The shorter way is taken.
  double norm_of_loha(const Module& m) const {
    const auto [a1, b1] = factors(m, ".hada_w1_a", ".hada_w1_b");
    const auto [a2, b2] = factors(m, ".hada_w2_a", ".hada_w2_b");
    check(a1.dim(0) == a2.dim(0) && b1.dim(1) == b2.dim(1),
          "{}: {} and its fellows make matrices of different shapes; the file is damaged", file_.path().string(),
          quote(m.keys.at(".hada_w1_a")));
    const int64_t rows = a1.dim(0), columns = b1.dim(1), pairs = a1.dim(1) * a2.dim(1);
    if (pairs > std::min(rows, columns)) {
      double sum = 0;
      for (const float v : mul(matmul(a1, b1), matmul(a2, b2)).to_vector()) sum += double(v) * double(v);
      return std::sqrt(sum);
    }
    const auto all_pairs = [](const Tensor& x, const Tensor& y) {  // [n, r], [n, s] -> [n, r * s]
      return reshape(mul(reshape(x, {x.dim(0), x.dim(1), 1}), reshape(y, {y.dim(0), 1, y.dim(1)})), {x.dim(0), -1});
    };
    const auto turned = [](const Tensor& x) { return contiguous(transpose(x, 0, 1)); };
    return wick::norm_of_product(all_pairs(a1, a2), turned(all_pairs(turned(b1), turned(b2))));
  }

  // The norm of a Kronecker product is that of its factors. Its alpha counts where one of them is a product itself.
  std::optional<double> norm_of_lokr(const Module& m, double scale) const {
    if (m.has(".lokr_t2")) return {};
    const auto factor = [&](const std::string& name) -> std::optional<double> {
      if (m.has(name)) {
        double sum = 0;
        for (const float v : load(m.keys.at(name)).to_vector()) sum += double(v) * double(v);
        return std::sqrt(sum);
      }
      if (!m.has(name + "_a") || !m.has(name + "_b")) return {};
      return norm_of_product(m, name + "_a", name + "_b");
    };
    const auto first = factor(".lokr_w1"), second = factor(".lokr_w2");
    if (!first || !second) return {};
    return *first * *second * (m.has(".lokr_w1") && m.has(".lokr_w2") ? 1 : scale);
  }

  // "transformer.double_blocks.3" of a path, "lora_unet_input_blocks_4" of a name that no model has; and a key that
  // sorts numbers as such.
  std::pair<std::string, std::string> block_of(const std::string& base) const {
    const std::string path = path_of(base);
    const size_t dot = path.find('.');
    const char before = dot == path.npos ? '_' : '.';
    size_t end = path.find_first_of("0123456789", dot == path.npos ? 0 : dot);
    while (end != path.npos && (end == 0 || path[end - 1] != before)) end = path.find_first_of("0123456789", end + 1);
    if (end == path.npos) return {"", path.substr(0, dot)};
    const size_t last = std::min(path.find_first_not_of("0123456789", end), path.size());
    const std::string number = path.substr(end, last - end);
    return {path.substr(0, end) + std::string(8 - std::min<size_t>(number.size(), 8), '0') + number,
            path.substr(0, last)};
  }

  void add(const std::string& base, const Module& module) {
    ++groups_[{component_of(base), module.kind, rank_of(module), alpha_of(base, module)}];
    const std::optional<double> norm = norm_of(base, module);
    if (!norm) {
      ++report_.unmeasured;
      return;
    }
    check(std::isfinite(*norm), "{}: {} holds what is not a finite number; the file is damaged", file_.path().string(),
          base);
    if (*norm == 0) report_.dead.push_back(base);
    blocks_[block_of(base)] += *norm * *norm;
  }

  void find_duplicates() {
    if (!known_) return;
    std::map<std::string, std::vector<std::pair<std::string, const ModuleName*>>> by_path;
    for (const auto& [base, module] : modules_) {
      const AdapterModules::Found found = known_->find(base);
      if (!found.module) continue;
      for (const auto& [other, name] : by_path[found.module->path])
        if (name->rows.overlap(found.name->rows)) report_.duplicates.emplace_back(other, base);
      by_path[found.module->path].emplace_back(base, found.name);
    }
  }

  ProgramHandling handling(const AdapterProgram& program, const Module& module) const;
  bool is_old_glora(const Module& module) const;
  std::vector<AdapterTrait> traits_of(const Module& module) const;
  std::optional<AdapterReport::Program> of_program(const AdapterProgram& program, bool is_sd3) const;
  bool lacks_alphas() const;
  void add_programs();

  LoraSettings settings_;
  SafetensorsFile file_;
  std::map<std::string, Module> modules_;
  std::optional<AdapterModules> known_;
  const DiffusionFamily* family_ = nullptr;
  std::map<std::tuple<std::string, std::string, std::optional<int64_t>, std::optional<double>>, int64_t> groups_;
  std::map<std::pair<std::string, std::string>, double> blocks_;
  AdapterReport report_;
};

// The worst of a module's kind and of what it has beside its factors, which counts only where the kind is loaded.
ProgramHandling Report::handling(const AdapterProgram& program, const Module& module) const {
  ProgramHandling worst{Handling::loads};
  for (const AdapterTrait trait : traits_of(module)) {
    if (const ProgramHandling one = program.handles(trait); one.how > worst.how) worst = one;
    if (worst.how > Handling::otherwise) break;
  }
  return worst;
}

// LyCORIS before 3 has [rank, in] where today's has [in, rank].
bool Report::is_old_glora(const Module& module) const {
  if (!module.has(".a1.weight")) return false;
  const Shape& shape = file_.tensors().at(module.keys.at(".a1.weight")).shape;
  return shape.rank() > 1 && shape[0] < shape[1];
}

std::vector<AdapterTrait> Report::traits_of(const Module& module) const {
  using T = AdapterTrait;
  static const std::map<const AdapterAlgorithm*, T> kinds = {{&lora_algorithm(), T::lora},
                                                             {&loha_algorithm(), T::loha},
                                                             {&lokr_algorithm(), T::lokr},
                                                             {&full_algorithm(), T::full_difference},
                                                             {&norm_algorithm(), T::norm_difference},
                                                             {&glora_algorithm(), T::glora},
                                                             {&ia3_algorithm(), T::ia3},
                                                             {&oft_algorithm(), T::oft},
                                                             {&peft_ia3_algorithm(), T::peft_ia3},
                                                             {&peft_oft_algorithm(), T::peft_oft},
                                                             {&peft_boft_algorithm(), T::peft_boft},
                                                             {&embedding_algorithm(), T::embedding},
                                                             {&token_rows_algorithm(), T::embedding}};
  std::vector<T> traits = {module.is_boft ? T::boft : kinds.at(module.algorithm)};
  if (traits.front() == T::glora && is_old_glora(module)) traits.front() = T::old_glora;
  if (module.has_core()) traits.push_back(T::core);
  if (module.has(".lora_B.bias")) traits.push_back(T::bias);
  if (module.has(".scalar")) traits.push_back(T::scalar);
  if (module.has(".rescale")) traits.push_back(T::gain);
  if (!module.has(kMagnitudeKey)) return traits;
  const std::string& key = module.keys.at(kMagnitudeKey);
  const Shape& shape = file_.tensors().at(key).shape;
  const bool is_peft = !key.ends_with(kMagnitudeKey), of_inputs = shape.rank() > 1 && shape[0] == 1 && shape[1] > 1;
  traits.push_back(is_peft ? T::peft_magnitude : of_inputs ? T::input_magnitude : T::output_magnitude);
  return traits;
}

// What a program makes of the modules whose names it knows; none where it knows none.
std::optional<AdapterReport::Program> Report::of_program(const AdapterProgram& program, bool is_sd3) const {
  AdapterReport::Program found{program.name};
  int64_t known = 0;
  std::set<std::string> raised, ignored, remarks;
  for (const auto& [base, module] : modules_) {
    if (!program.knows(base, is_sd3)) continue;
    ++known;
    const ProgramHandling handling = this->handling(program, module);
    if (handling.how == Handling::raises) raised.insert(module.kind);
    if (handling.how == Handling::ignores) ignored.insert(module.kind);
    if (handling.how == Handling::otherwise) remarks.insert(handling.remark);
    found.modules += handling.how <= Handling::otherwise;
  }
  if (known == 0) return {};
  if (!raised.empty())
    return AdapterReport::Program{program.name, 0, fmt::format("raises an error at {}", fmt::join(raised, " and "))};
  if (!program.reads_settings && found.modules > 0 && lacks_alphas())
    remarks.insert("takes a scale of 1, since alphas stand beside the tensors");
  if (!ignored.empty()) remarks.insert(fmt::format("leaves out {}", fmt::join(ignored, " and ")));
  found.remark = fmt::format("{}", fmt::join(remarks, "; "));
  return found;
}

bool Report::lacks_alphas() const {
  return std::ranges::any_of(modules_, [&](const auto& entry) {
    const auto alpha = alpha_of(entry.first, entry.second);
    return alpha && !entry.second.has(".alpha") && *alpha != double(rank_of(entry.second).value_or(1));
  });
}

void Report::add_programs() {
  const auto is_sd3_name = [](const auto& entry) { return entry.first.find("joint_blocks") != entry.first.npos; };
  const bool is_sd3 = std::ranges::any_of(modules_, is_sd3_name) ||
                      (known_ && known_->find("lora_unet_joint_blocks_0_x_block_attn_qkv").module);
  for (const AdapterProgram& program : adapter_programs())
    if (const auto found = of_program(program, is_sd3)) report_.programs.push_back(*found);
  std::ranges::stable_sort(report_.programs, std::greater(), &AdapterReport::Program::modules);
}

}  // namespace

AdapterReport AdapterReport::of(const std::filesystem::path& path) { return Report(path).make(); }

}  // namespace wick
