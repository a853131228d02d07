#include "wick/train/captions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "wick/core/rng.h"
#include "wick/io/file.h"
#include "wick/io/sha256.h"
#include "wick/nn/named_seed.h"
#include "wick/text/unicode.h"
#include "wick/train/batches.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxCaptionBytes = size_t{1} << 20;
constexpr const char *kTxt = ".txt", *kCaption = ".caption";

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

fs::path beside(const fs::path& image, const std::string& extension) {
  return fs::path(image).replace_extension(extension);
}

std::string in_capitals(std::string extension) {
  for (char& c : extension) c = c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c;
  return extension;
}

// Extensions of captions; each may be in capitals too.
std::vector<std::string> extensions_of(const CaptionOptions& options) {
  if (options.extension.empty()) return {kTxt, kCaption};
  return {options.extension};
}

// Empty where there is none.
fs::path caption_file(const fs::path& image, const CaptionOptions& options) {
  std::vector<fs::path> found;
  for (const std::string& extension : extensions_of(options))
    for (const std::string& name : std::set<std::string, std::greater<>>{extension, in_capitals(extension)}) {
      std::error_code ignored;
      const fs::path file = beside(image, name);
      if (!fs::exists(file, ignored)) continue;
      // A file system may hold the two names for one.
      if (found.empty() || !fs::equivalent(found.front(), file, ignored)) found.push_back(file);
    }
  if (found.size() > 1)
    fail("{}: two captions, {} and {}; remove one of them, or choose by --caption-extension", image.string(),
         found[0].filename().string(), found[1].filename().string());
  return found.empty() ? fs::path() : found.front();
}

// With all that the options put around it.
std::string completed(std::string caption, const CaptionOptions& options) {
  if (!options.prefix.empty()) caption = options.prefix + " " + caption;
  if (!options.suffix.empty()) caption += " " + options.suffix;
  if (options.trigger.empty()) return caption;
  caption = with_trigger(std::move(caption), options.trigger);
  const bool told = caption.find(options.trigger) != caption.npos;
  return told ? caption : options.trigger + ", " + caption;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (line = trimmed(line); !line.empty()) lines.push_back(line);
  return lines;
}

// Lines of wildcards are one text until a variant takes one of them: the prefix is before the first of them alone.
std::vector<std::string> texts_of(const std::string& text, const CaptionOptions& options) {
  if (options.wildcards) return {fmt::format("{}", fmt::join(lines_of(text), "\n"))};
  if (options.lines) return lines_of(text);
  return {options.first_line ? trimmed(text.substr(0, text.find('\n'))) : text};
}

std::vector<std::string> split_at(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size(); begin += parts.back().size() + 1)
    parts.push_back(text.substr(begin, text.find(separator, begin) - begin));
  return parts;
}

std::vector<std::string> tags_of(const std::string& caption, const std::string& separator) {
  std::vector<std::string> tags;
  for (size_t begin = 0; begin <= caption.size();) {
    const size_t end = std::min(caption.find(separator, begin), caption.size());
    if (std::string tag = trimmed(caption.substr(begin, end - begin)); !tag.empty()) tags.push_back(std::move(tag));
    begin = end + separator.size();
  }
  return tags;
}

// The text before the first `separator`, and the text behind it. Without a separator the former is the whole.
std::pair<std::string, std::optional<std::string>> cut_at(const std::string& text, const std::string& separator) {
  const size_t at = separator.empty() ? text.npos : text.find(separator);
  if (at == text.npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + separator.size())};
}

std::string with_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// One of the parts of each {a|b}, of a line by chance.
std::string with_choices(const std::string& caption, Rng& rng) {
  static constexpr std::string_view kOpen("\0l", 2), kClose("\0r", 2);  // no caption has a NUL
  const auto one_of = [&](const std::vector<std::string>& all) {
    return all.size() == 1 ? all.front() : all[rng.below(all.size())];
  };
  const std::string text = with_all(with_all(one_of(split_at(caption, '\n')), "{{", kOpen), "}}", kClose);
  std::string chosen;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '{' ? text.find('}', at + 1) : text.npos;
    if (end == text.npos || end == at + 1) {
      chosen += text[at++];
      continue;
    }
    chosen += one_of(split_at(text.substr(at + 1, end - at - 1), '|'));
    at = end + 1;
  }
  return with_all(with_all(std::move(chosen), kOpen, "{"), kClose, "}");
}

// The tags of a caption: those that stay at the beginning and at the end, and the others.
struct Tags {
  std::vector<std::string> first, others, last;
};

Tags sorted_tags(const std::string& caption, const CaptionOptions& options) {
  Tags tags;
  const auto [before, behind] = cut_at(caption, options.keep_separator);
  if (behind) {
    const auto [others, last] = cut_at(*behind, options.keep_separator);
    tags = {tags_of(before, options.separator), tags_of(others, options.separator)};
    if (last) tags.last = tags_of(*last, options.separator);
    return tags;
  }
  tags.first = tags_of(caption, options.separator);
  const auto end = tags.first.begin() + std::min(options.keep_tokens, std::ssize(tags.first));
  tags.others.assign(end, tags.first.end());
  tags.first.erase(end, tags.first.end());
  return tags;
}

std::string shuffled(const std::string& caption, const CaptionOptions& options, Rng& rng) {
  auto [all, others, last] = sorted_tags(caption, options);
  if (options.shuffle) fisher_yates(others, rng);
  for (std::string& tag : others)
    if (options.tag_dropout == 0 || double(rng.uniform()) >= options.tag_dropout) all.push_back(std::move(tag));
  std::ranges::move(last, std::back_inserter(all));
  return fmt::format("{}", fmt::join(all, ", "));
}

// The file's text, as it is and without the space around it.
std::pair<std::string, std::string> read_caption(const fs::path& file) {
  const std::string bytes = read_file(file, kMaxCaptionBytes);
  std::string text = bytes;
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte-order mark
  check(invalid_utf8(text) == text.npos, "{}: the caption is not UTF-8; save it with that encoding", file.string());
  check(text.find('\0') == text.npos, "{}: expected a caption, found a NUL character", file.string());
  text = trimmed(text);
  check(!text.empty(), "{}: the caption is empty; write what the picture shows, or remove the picture", file.string());
  return {bytes, text};
}

}  // namespace

bool is_caption_name(const fs::path& file, const CaptionOptions& options) {
  const std::string extension = file.extension().string();
  return std::ranges::any_of(extensions_of(options), [&](const std::string& known) {
    return extension == known || extension == in_capitals(known);
  });
}

std::string with_trigger(std::string text, const std::string& word) {
  return word.empty() ? text : with_all(std::move(text), kTrigger, word);
}

PictureCaptions read_captions(const fs::path& image, const fs::path& folder, const CaptionOptions& options) {
  const fs::path file = caption_file(image, options);
  if (file.empty()) {
    check(!options.class_tokens.empty(), "{}: no caption; write what the picture shows into {}", image.string(),
          beside(image, options.extension.empty() ? kTxt : options.extension).filename().string());
    return {{completed(options.class_tokens, options)}};
  }
  const auto [bytes, text] = read_caption(file);
  PictureCaptions captions{.texts = texts_of(text, options),
                           .file = DataFile{file.lexically_relative(folder).generic_string(), sha256_hex(bytes)}};
  for (std::string& caption : captions.texts) caption = completed(std::move(caption), options);
  return captions;
}

// The stream of captions under a seed of the caption's own, with a stretch for each variant.
std::string caption_variant(const std::string& caption, const CaptionOptions& options, uint64_t seed, int64_t index) {
  Rng rng(named_seed(seed, caption), Stream::caption, uint64_t(index) << 32);
  std::string variant = options.wildcards ? with_choices(caption, rng) : caption;
  if (options.splits()) variant = shuffled(variant, options, rng);
  if (options.secondary_separator.empty()) return variant;
  return with_all(std::move(variant), options.secondary_separator, options.separator);
}

}  // namespace wick
