// The parts of a model by which gradients are told apart.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wick {

// "middle block", "double blocks", "text encoders", "attention", …, by the name that a parameter has in files of LoRAs
// or of models; "other" where none fits.
std::string_view model_part(std::string_view parameter);

// The parts of these parameters, in the order in which data pass through a model, and the place among them that each
// parameter has.
struct ModelParts {
  std::vector<std::string> names;
  std::vector<size_t> of;  // one a parameter
};
ModelParts model_parts_of(const std::vector<std::string>& parameters);

}  // namespace wick
