// The file of --sample-prompts: a prompt a line, with flags behind it as kohya's scripts have them; empty lines and
// those that begin with # are left out.
//
//   a fox in the snow --n blurred --w 1024 --h 768 --d 7 --s 30
//
// Or a file of another trainer's (foreign/samples.h): kohya's prompts in TOML or JSON, OneTrainer's samples, or an
// option file that holds them.
// Source: kohya-ss/sd-scripts, library/train_util.py, line_to_prompt_dict().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

struct SamplePrompt {
  std::string line;   // as the file has it
  std::string where;  // "FILE: line 3", for messages
  std::string prompt;
  std::optional<std::string> negative;   // --n
  std::optional<int64_t> width, height;  // --w, --h: pixels
  std::optional<uint64_t> seed;          // --d
  std::optional<double> cfg;             // --l: scale of classifier-free guidance
  std::optional<double> guidance;        // --g: that a model is told
  std::optional<int64_t> steps;          // --s: of denoising; of a language model's text, the tokens at the most
  std::optional<std::string> sampler;    // --ss
  // In other trainers' files: the guidance of a model that is told one, else the scale of classifier-free guidance; and
  // the sampler of a model that is no rectified flow.
  std::optional<double> scale;
  std::optional<std::string> noise_sampler;
  std::vector<std::string> idle;  // flags and keys that other programs or models have

  std::vector<std::string> flags() const;  // that are given: "--w"
};

// The prompt of a line, without its flags.
std::string_view prompt_of(std::string_view line);

// Throws UsageError that names the line and the flag.
std::vector<SamplePrompt> read_sample_prompts(const std::filesystem::path& file);
std::vector<SamplePrompt> parse_sample_prompts(std::string_view text, const std::string& file);
SamplePrompt parse_sample_prompt(std::string_view line, std::string where);
// Sets what a flag does ("--w") from the value of a key, which messages name.
void set_by_flag(SamplePrompt& prompt, std::string_view flag, std::string_view value, std::string_view key);
inline constexpr size_t kMostSamplePrompts = 256;

}  // namespace wick
