// A tiny FLUX or SD3 of tests/golden ("flux_pictures", "sd3") with the tokenizers that other goldens have.
#pragma once

#include <filesystem>
#include <string>

#include "io/files.h"
#include "source_dir.h"

namespace wick::test {

class FlowFolder {
 public:
  explicit FlowFolder(const std::string& name) {
    namespace fs = std::filesystem;
    const fs::path golden = source_dir() / "tests/golden";
    fs::copy(golden / name, path(), fs::copy_options::recursive);
    const bool has_big_g = name == "sd3";
    fs::copy(golden / "sdxl/tokenizer", path() / "tokenizer");
    if (has_big_g) fs::copy(golden / "sdxl/tokenizer_2", path() / "tokenizer_2");
    const fs::path unigram = path() / (has_big_g ? "tokenizer_3" : "tokenizer_2");
    fs::create_directory(unigram);
    fs::copy(golden / "t5_tokenizer/tokenizer.json", unigram / "tokenizer.json");
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryDirectory folder_;
};

}  // namespace wick::test
