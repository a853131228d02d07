// Settings that kohya's GUI saves, as JSON of its own names, and what it hands to the scripts for them.
#pragma once

#include <string>
#include <vector>

#include "wick/train/foreign/tree.h"

namespace wick {

bool is_of_kohya_gui(const nlohmann::ordered_json& tree);

// The scripts' options; null is one that the GUI leaves out, since it is empty, false or 0. `own` gets the keys that
// the GUI keeps for itself.
nlohmann::ordered_json options_of_gui(const nlohmann::ordered_json& gui, std::vector<std::string>& own);

}  // namespace wick
