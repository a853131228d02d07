// The networks of kohya's scripts, of LyCORIS and of musubi-tuner: the modules that they train of a model, with ranks,
// alphas and shares of the learning rate, as their arguments have it. Sources: networks/lora.py, lora_flux.py,
// lora_sd3.py, loha.py and lokr.py of kohya-ss/sd-scripts (create_network and the class of the network),
// lycoris/kohya.py and config.py of KohakuBlueleaf/LyCORIS, networks/lora_flux.py and network_arch.py of
// kohya-ss/musubi-tuner.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "wick/nn/glob.h"
#include "wick/train/config.h"

namespace wick {

enum class KohyaModel { sdxl = 1, sd3 = 2, flux = 4 };
std::string_view name_of_model(KohyaModel model);  // "SDXL"

// Who reads the arguments. Their sums name several.
enum class NetworkFamily { lora = 1, lora_flux = 2, lora_sd3 = 4, loha_lokr = 8, lycoris = 16, musubi_flux = 32 };

struct KohyaNetwork {
  std::string_view module;
  NetworkFamily family;
  AdapterKind kind = AdapterKind::lora;  // of LyCORIS: its arguments say which
};
// Null of a module that Wick does not know; throws UsageError, without a name, for a kind that Wick does not train.
const KohyaNetwork* find_kohya_network(std::string_view module);

// An argument of networks, and what becomes of it.
struct NetworkArgument {
  enum class Use { setting, together, idle, refused };

  std::string_view name;
  int families;  // that read it; the others leave it alone
  Use use = Use::together;
  std::string_view text = {};     // a setting's name, or what there is instead of a refused one
  std::string_view neutral = {};  // the value of a refused one that asks for nothing
};
const NetworkArgument* find_network_argument(std::string_view name);

// KEY=VALUE. If a key is repeated, the last value wins. Empty values and None count as absent. A value that should be a
// number and is none is a UsageError that begins with the argument.
class NetworkArguments {
 public:
  void set(const std::string& name, std::string value) { values_[name] = std::move(value); }
  const std::map<std::string, std::string, std::less<>>& all() const { return values_; }

  bool has(std::string_view name) const;
  bool names_none(std::string_view name) const;                               // "none" or "", of a choice of blocks
  std::string text(std::string_view name, std::string_view otherwise) const;  // in small letters
  double number(std::string_view name, double otherwise) const;
  std::vector<double> numbers(std::string_view name, size_t count) const;  // "1,2" or "[1,2]"
  bool is_true(std::string_view name) const;                               // "True", as the scripts compare it
  bool is_not_false(std::string_view name, bool otherwise) const;          // as LyCORIS compares it

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

struct NetworkSizes {
  int64_t rank = 0;
  double alpha = 0;
  int64_t conv_rank = 0;  // of convolutions of more than one pixel; 0: they are not trained
  double conv_alpha = 0;
};

// Of the denoiser. Patterns name modules that are trained, and that such a model has.
struct NetworkModules {
  std::vector<std::string> targets;  // none: the network trains none of it
  NetworkSizes sizes;
  std::vector<ByPattern<int64_t>::Other> ranks = {};
  std::vector<ByPattern<double>::Other> alphas = {}, shares = {};  // shares of the learning rate
  bool trains_text = true;
  std::string text_modules = "layers.*";  // behind "text_encoder.*"
};

// Throws UsageError that begins with the argument at fault.
NetworkModules network_modules(const KohyaNetwork& network, KohyaModel model, const NetworkArguments& arguments,
                               const NetworkSizes& sizes);

}  // namespace wick
