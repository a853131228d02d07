// Folders of the models in tests/golden/gguf_engine, whose ids in llama.cpp are known (tools/golden/gguf_engine.py).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"

namespace wick::test {

inline const std::filesystem::path kEngine = source_dir() / "tests/golden/gguf_engine";

inline void write_engine_model(const std::filesystem::path& folder, const std::string& family) {
  namespace fs = std::filesystem;
  const nlohmann::json facts = read_json(kEngine / "families.json").at(family);
  fs::copy(kEngine.parent_path() / "tokenizers" / facts.at("tokenizer").get<std::string>(), folder,
           fs::copy_options::recursive);
  fs::remove(folder / "tokenizer.model");
  // One file serves all families; where the head is tied to the table it has no head.
  const SafetensorsFile file = SafetensorsFile::open(kEngine / "model.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors())
    if (name != "lm_head.weight" || !facts.at("config").value("tie_word_embeddings", false))
      tensors[name] = file.load(name);
  save_safetensors(folder / "model.safetensors", tensors);
  write_plain(folder / "config.json", facts.at("config").dump());
}

}  // namespace wick::test
