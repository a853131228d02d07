// The part of `wick convert` that is about adapters: --lora, and --extract.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace wick {

struct AdapterArguments {
  std::string lora, to, energy, extract, base;
  int64_t rank = 0;
  std::vector<std::string> targets;

  bool is_asked() const { return !lora.empty() || !extract.empty(); }
};

void add_adapter_flags(CLI::App& command, AdapterArguments& a);
// The flags among these that are not for models alone. `model` may be empty.
void convert_adapter(const AdapterArguments& a, const std::string& model, const std::string& output, bool overwrite);

}  // namespace wick
