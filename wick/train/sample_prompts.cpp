#include "wick/train/sample_prompts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <variant>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/quote.h"
#include "wick/text/unicode.h"
#include "wick/train/foreign/samples.h"

namespace wick {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;

using P = SamplePrompt;
struct PromptFlag {
  std::string_view name;
  std::variant<std::optional<std::string> P::*, std::optional<int64_t> P::*, std::optional<uint64_t> P::*,
               std::optional<double> P::*>
      member;
  double min = 0, max = 0;  // of numbers
};
constexpr PromptFlag kFlags[] = {
    {"--n", &P::negative},    {"--w", &P::width, 1, 16384},  {"--h", &P::height, 1, 16384}, {"--d", &P::seed},
    {"--l", &P::cfg, 1, 100}, {"--g", &P::guidance, 0, 100}, {"--s", &P::steps, 1, 4096},   {"--ss", &P::sampler}};
// Flags of kohya's programs that training previews of these models leave alone: those of gen_img.py, of ControlNets, of
// other models, and of musubi-tuner's videos.
constexpr std::string_view kIdleFlags[] = {"--am", "--c",  "--ci", "--cl", "--cn",   "--ct", "--ctr",
                                           "--ei", "--f",  "--fs", "--i",  "--nc",   "--nh", "--nl",
                                           "--nw", "--of", "--oh", "--ow", "--rcfg", "--t"};
constexpr std::string_view kFlagNames = "--n, --w, --h, --d, --l, --g, --s or --ss", kSpace = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The place of the next flag: two dashes and a letter, at the line's begin or behind a space.
size_t next_flag(std::string_view line, size_t from) {
  for (size_t at = from; (at = line.find("--", at)) != line.npos; at += 2)
    if ((at == 0 || kSpace.find(line[at - 1]) != kSpace.npos) && at + 2 < line.size() && is_letter(line[at + 2]))
      return at;
  return line.size();
}

template <class T>
T number_of(std::string_view word, const PromptFlag& flag, std::string_view key, const std::string& where) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool is_read = error == std::errc() && end == word.data() + word.size();
  if constexpr (std::is_same_v<T, uint64_t>)
    check_usage(is_read, "{}: {}: expected an integer from 0 to {}, found {}", where, key,
                std::numeric_limits<uint64_t>::max(), quote(word));
  else
    check_usage(is_read && std::isfinite(double(value)) && double(value) >= flag.min && double(value) <= flag.max,
                "{}: {}: expected {} from {} to {}, found {}", where, key,
                std::is_integral_v<T> ? "an integer" : "a number", flag.min, flag.max, quote(word));
  return value;
}

void set(SamplePrompt& prompt, const PromptFlag& flag, std::string_view value, std::string_view key) {
  std::visit(
      [&]<class T>(std::optional<T> P::*member) {
        check_usage(!(prompt.*member), "{}: {}: is there twice; expected it once", prompt.where, key);
        if constexpr (std::is_same_v<T, std::string>)
          prompt.*member = std::string(value);
        else
          prompt.*member = number_of<T>(value, flag, key, prompt.where);
      },
      flag.member);
}

}  // namespace

SamplePrompt parse_sample_prompt(std::string_view line, std::string where) {
  SamplePrompt prompt{.line = std::string(line), .where = std::move(where), .prompt = {}};
  check_usage(invalid_utf8(line) == std::string_view::npos && line.find('\0') == line.npos,
              "{}: expected a text in UTF-8, found {}", prompt.where, quote(line));
  size_t at = next_flag(line, 0);
  prompt.prompt = prompt_of(line);
  while (at < line.size()) {
    const size_t end = next_flag(line, at + 2), space = std::min(line.find_first_of(kSpace, at), end);
    std::string name(line.substr(at, space - at));
    std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
    const auto* flag = std::ranges::find(kFlags, name, &PromptFlag::name);
    if (std::ranges::find(kIdleFlags, name) != std::end(kIdleFlags)) {
      prompt.idle.push_back(name);
      at = end;
      continue;
    }
    check_usage(flag != std::end(kFlags), "{}: expected {}, found {}", prompt.where, kFlagNames, quote(name));
    const std::string_view value = trimmed(line.substr(space, end - space));
    check_usage(!value.empty() || name == "--n", "{}: {}: expected a value behind it, found none", prompt.where, name);
    set(prompt, *flag, value, name);
    at = end;
  }
  return prompt;
}

void set_by_flag(SamplePrompt& prompt, std::string_view flag, std::string_view value, std::string_view key) {
  set(prompt, *std::ranges::find(kFlags, flag, &PromptFlag::name), value, key);
}

std::string_view prompt_of(std::string_view line) { return trimmed(line.substr(0, next_flag(line, 0))); }

std::vector<std::string> SamplePrompt::flags() const {
  std::vector<std::string> given;
  for (const PromptFlag& flag : kFlags)
    if (std::visit([&](auto member) { return (this->*member).has_value(); }, flag.member))
      given.emplace_back(flag.name);
  return given;
}

std::vector<SamplePrompt> parse_sample_prompts(std::string_view text, const std::string& file) {
  std::vector<SamplePrompt> prompts;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte-order mark
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    check_usage(prompts.size() < kMostSamplePrompts, "{}: expected at most {} prompts, found more", file,
                kMostSamplePrompts);
    prompts.push_back(parse_sample_prompt(line, fmt::format("{}: line {}", file, number)));
  }
  check_usage(!prompts.empty(), "{}: expected a prompt a line, found none", file);
  return prompts;
}

std::vector<SamplePrompt> read_sample_prompts(const std::filesystem::path& file) {
  static constexpr std::string_view kForeign[] = {".toml", ".json", ".yaml", ".yml"};
  if (std::ranges::find(kForeign, file.extension().string()) != std::end(kForeign)) return read_foreign_samples(file);
  return parse_sample_prompts(read_file(file, kMostBytes), file.string());
}

}  // namespace wick
