// The optimizers of Python's libraries that Wick has: other trainers name them by their classes, with arguments of
// their constructors, and leave those to the constructors' own defaults.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/config.h"

namespace wick {

struct OptimizerClass {
  std::string_view library, name;  // the first name of its module, and its own in small letters
  OptimizerKind kind;
  double weight_decay = 0;
  bool is_coupled = false;  // its weight decay joins the gradients, where Wick's never does
};

// A class by its name in letters of any size, alone or behind its module: "AdamW8bit", "prodigyopt.Prodigy". Null where
// Wick has no such optimizer. Of two classes of a name without a module it is the one that kohya's scripts take.
const OptimizerClass* find_optimizer_class(std::string_view name);
// Ends a message that there is none: what is expected, and what comes nearest.
std::string expected_optimizer_class(std::string_view name);

// Gives the settings of optimizers what the class's constructor has unless told otherwise.
void set_optimizer_class(TrainConfig& config, const OptimizerClass& known);

bool has_optimizer_argument(const OptimizerClass& known, std::string_view name);
// What becomes of a constructor's argument: a setting and its words, nothing, or a refusal.
struct OptimizerArgument {
  std::string_view setting = {};
  std::vector<std::string> words = {};
  std::string refusal = {};
};
// `words` are the value's as Python or JSON write them: "0.9", "0.99"; "True"; "None". Arguments that are part of a
// list (beta3 of betas) join what `config` has.
OptimizerArgument read_optimizer_argument(const TrainConfig& config, const OptimizerClass& known, std::string_view name,
                                          const std::vector<std::string>& words);

}  // namespace wick
