// The part of `wick inspect` that shows a file of adapters.
#pragma once

#include <filesystem>

namespace wick {

// Kinds, ranks and alphas by component, norms by block as a chart, dead and doubled modules, and the programs that load
// it.
void print_adapter(const std::filesystem::path& path);

}  // namespace wick
