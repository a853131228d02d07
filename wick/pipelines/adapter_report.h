// What a file of adapters holds, for `wick inspect`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace wick {

struct AdapterReport {
  struct Group {                  // modules of one component and kind, of one size
    std::string component, kind;  // "unet", "LoRA"
    std::optional<int64_t> rank;
    std::optional<double> alpha;  // none where the file has none for them
    int64_t modules = 0;
  };
  struct Block {
    std::string name;  // "transformer.double_blocks.3"
    double norm = 0;   // root of the sum of its modules' squared Frobenius norms
  };
  struct Program {
    std::string name;
    int64_t modules = 0;      // that its code loads, of those in the file (adapter_programs.h)
    std::string remark = {};  // how it loads them otherwise than Wick, or which it leaves out
  };

  std::vector<Group> groups;
  std::vector<Block> blocks;            // in the model's order
  int64_t modules = 0, unmeasured = 0;  // the latter change their base by what depends on its weights
  std::vector<std::string> dead;        // modules whose change is exactly zero
  std::vector<std::pair<std::string, std::string>> duplicates;  // two names for one module, or for rows of one
  std::vector<std::string> embeddings;                          // tensors that teach words
  std::vector<Program> programs;  // that know some of its names, those that load most first

  // Norms are those of the changes at strength 1. Of DoRA's they are those of the factors' product, without the
  // magnitudes. Throws Error for a damaged file.
  static AdapterReport of(const std::filesystem::path& path);
};

}  // namespace wick
