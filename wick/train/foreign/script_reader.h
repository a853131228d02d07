// The reader of options that kohya's scripts and musubi-tuner share: a command or an option file of it, the network,
// the optimizer and its schedule, precision, results and times of a flow.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "wick/core/error.h"
#include "wick/train/foreign/kohya_network.h"
#include "wick/train/foreign/optimizers.h"
#include "wick/train/foreign/table.h"

namespace wick {

class ScriptReader : protected ForeignReader {
 protected:
  // `program` as ForeignReader has it. `is_command`: the tree has words of a command, which win over the file that
  // config_file names.
  ScriptReader(const std::string& source, std::string program, std::span<const ForeignKey> table,
               const nlohmann::ordered_json& tree, bool is_command);

  void refuse_unknown_options();  // of a command, which its program refuses
  // The network's part throws UsageError, which is a refusal of the key.
  template <class Part>
  static auto of_network(std::string_view key, Part&& part) {
    try {
      return part();
    } catch (const UsageError& error) {
      refuse(key, error.what());
    }
  }

  void settle_previews();
  void settle_resolution();
  void read_network_arguments();
  void settle_argument(const std::string& name, const std::string& value);
  void set_argument(std::string_view setting, const std::vector<std::string>& to, std::string_view argument);
  void settle_sizes(double alpha);
  bool trains_denoiser() const;
  void settle_lora_plus(bool has_denoiser, bool has_text);
  void settle_optimizer();
  void settle_optimizer_argument(const OptimizerClass& known, const std::string& argument);
  void settle_relative_step(const std::string& optimizer);
  void settle_schedule();  // after settle_optimizer()
  void settle_precision();
  void settle_output();
  void settle_flow_times(double default_shift);
  void settle_density(const std::string& scheme, double shift, std::string_view shift_key);
  void settle_steps();

  KohyaModel model_ = KohyaModel::sdxl;
  KohyaNetwork network_ = *find_kohya_network("networks.lora");
  NetworkArguments arguments_;
  NetworkModules modules_;

 private:
  void add_flat(const nlohmann::ordered_json& tree, const nlohmann::ordered_json& winners);

  std::span<const ForeignKey> table_;
  std::vector<std::string> not_options_;  // of a command
};

}  // namespace wick
