// The previews of a run on the disk, in `samples` of its folder:
//
//   NAME-000100-00.png (or .txt)   what prompt 0 made of step 100
//   prompts.txt                    the prompts by their numbers: a prompt keeps its own, whatever others come or go
//   sheet.png                      pictures small and side by side: a row a prompt, a column a step
//
// and for TensorBoard in `logs/samples`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wick/train/previews.h"
#include "wick/train/run_log.h"

namespace wick {

struct StoredPreview {
  int64_t step = 0;
  size_t number = 0;   // of its prompt
  std::string prompt;  // its line in the file of prompts; empty where that is lost
  std::filesystem::path file;
};

class PreviewFolder {
 public:
  // Keeps the previews in `output` of steps 0 to `step`, and nothing else; of a run that begins anew `step` is none.
  PreviewFolder(std::filesystem::path output, std::string name, const std::vector<SamplePrompt>& prompts,
                std::optional<int64_t> step);

  bool has(int64_t step) const;  // all prompts of now
  // Of prompt `index` of now.
  void add(int64_t step, size_t index, const Preview& preview);
  void draw_sheet();  // of the pictures so far

  const std::vector<std::string>& prompts() const { return prompts_; }  // lines of their files, former ones among them
  std::vector<StoredPreview> all() const;                               // by step, then by prompt

 private:
  using Place = std::pair<int64_t, size_t>;  // step, and the prompt's number
  std::filesystem::path folder() const { return output_ / "samples"; }
  std::filesystem::path file_of(Place place, const char* extension) const;
  std::optional<Place> place_of(const std::filesystem::path& file) const;
  void find(std::optional<int64_t> step);
  void number_prompts(const std::vector<SamplePrompt>& prompts, bool anew);
  std::string line_of(size_t number) const { return number < prompts_.size() ? prompts_[number] : ""; }
  std::string label_of(size_t number) const;  // "3: a fox in the snow"
  std::string record_of(Place place, const std::filesystem::path& file) const;
  const Image& small(Place place);

  std::filesystem::path output_;
  std::string name_;
  std::vector<std::string> prompts_;
  std::vector<size_t> numbers_;  // of the prompts of now
  std::map<Place, std::filesystem::path> files_;
  std::map<Place, Image> small_;
  std::optional<AppendedFile> events_;
};

}  // namespace wick
