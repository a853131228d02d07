#include "wick/pipelines/infotext.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/text/foreign_syntax.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

using nlohmann::json;

// Names of samplers and of their schedules. An empty schedule is none that has to be named.
struct SamplerName {
  const char *wick, *sampler, *schedule;
};
constexpr SamplerName kSamplerNames[] = {{"euler", "Euler", ""},
                                         {"euler-ancestral", "Euler a", ""},
                                         {"dpmpp-2m", "DPM++ 2M", "Uniform"},
                                         {"dpmpp-2m-karras", "DPM++ 2M", "Karras"},
                                         {"dpmpp-sde", "DPM++ SDE", "Karras"},
                                         {"ddim", "DDIM", ""},
                                         {"unipc", "UniPC", ""},
                                         {"lcm", "LCM", ""}};
// Schedules whose times are about as far from each other.
constexpr std::string_view kUniform[] = {"", "Uniform", "Normal", "Simple", "SGM Uniform", "DDIM"};
// Samplers that the web UI draws with Karras' schedule if that is "Automatic".
constexpr std::string_view kKarrasByItself[] = {"DPM++ 2M", "DPM++ SDE"};

// Numbers with one name here and one there.
constexpr std::pair<const char*, const char*> kNumbers[] = {
    {"steps", "Steps"}, {"cfg", "CFG scale"}, {"guidance", "Distilled CFG Scale"}, {"guidance-rescale", "CFG rescale"},
    {"shift", "Shift"}, {"seed", "Seed"}};

// What a text says of files and programs, and changes nothing by itself.
constexpr std::string_view kRemarks[] = {"Model",  "Model hash", "VAE",      "VAE hash", "Lora hashes", "TI hashes",
                                         "Hashes", "Version",    "User",     "RNG",      "Clip skip",   "Schedule type",
                                         "Module", "Module 1",   "Module 2", "Module 3"};

template <class Range, class Value>
bool contains(const Range& range, const Value& value) {
  return std::ranges::find(range, value) != std::end(range);
}

std::string in_quotes(const std::string& value) {
  const bool plain = value.find_first_of(",:\n\"") == value.npos;
  return plain ? value : json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string as_text(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// "a, b", with the quotes of CSV where they are needed.
std::string list_of(const json& values) {
  std::string text;
  for (const json& value : values) {
    std::string cell = as_text(value);
    if (cell.find_first_of(",\"\n") != cell.npos) {
      for (size_t at = 0; (at = cell.find('"', at)) != cell.npos; at += 2) cell.insert(at, 1, '"');
      cell = '"' + cell + '"';
    }
    text += (text.empty() ? "" : ", ") + cell;
  }
  return text;
}

std::string stem_of(const std::string& path) {
  const std::filesystem::path name = std::filesystem::path(path).filename();
  return replace_invalid_utf8(
      (name.has_filename() ? name : std::filesystem::path(path).parent_path().filename()).stem().string());
}

// As the web UI writes LoRAs into a prompt: with one strength, or with that of the text encoders and of the denoiser.
std::string lora_tags(const std::vector<LoraFile>& loras) {
  std::string tags;
  for (const LoraFile& lora : loras) {
    const float text = lora.strength_of("text_encoder"),
                denoiser = lora.strength_of(lora.parts.contains("unet") ? "unet" : "transformer");
    const std::string strengths = text == denoiser ? fmt::format("{}", text) : fmt::format("{}:{}", text, denoiser);
    tags += fmt::format("{}<lora:{}:{}>", tags.empty() ? "" : " ", stem_of(lora.path.string()), strengths);
  }
  return tags;
}

// "name: 0123456789ab", for those that have one.
std::string lora_hashes(const json& settings, const std::vector<LoraFile>& loras) {
  const json hashes = settings.value("lora-hashes", json::object());
  std::string text;
  for (const LoraFile& lora : loras)
    if (const auto hash = hashes.find(lora.path.string()); hash != hashes.end())
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", stem_of(lora.path.string()), hash->get<std::string>());
  return text;
}

// The fields of the last line, in the web UI's order.
class Fields {
 public:
  void add(const std::string& name, const std::string& value) {
    if (!value.empty()) text_ += fmt::format("{}{}: {}", text_.empty() ? "" : ", ", name, in_quotes(value));
  }
  void add_number(const json& settings, const char* setting) {
    const auto* named =
        std::ranges::find(kNumbers, std::string_view(setting), [](const auto& n) { return std::string_view(n.first); });
    if (!settings.contains(setting)) return;
    const json& value = settings[setting];
    add(named->second, as_text(value.is_array() ? value.front() : value));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_sampler(const std::string& sampler, Fields& fields) {
  const auto* known = std::ranges::find(kSamplerNames, sampler, &SamplerName::wick);
  const bool found = known != std::end(kSamplerNames);
  fields.add("Sampler", found ? known->sampler : sampler);
  fields.add("Schedule type", found ? known->schedule : "");
}

// A grid: prompts are its columns, seeds its rows.
void add_plot(const json& settings, Fields& fields) {
  const json prompts = settings.value("prompt", json::array()), seeds = settings.value("seed", json::array());
  const bool compares = settings.value("compare", false);
  if (prompts.size() < 2 && seeds.size() < 2 && !compares) return;
  fields.add("Script", "X/Y/Z plot");
  if (prompts.size() > 1) fields.add("X Type", "Prompt S/R"), fields.add("X Values", list_of(prompts));
  if (seeds.size() > 1) fields.add("Y Type", "Seed"), fields.add("Y Values", list_of(seeds));
  if (compares) fields.add("Z Type", "LoRA"), fields.add("Z Values", "without, with");
}

}  // namespace

std::string infotext_of(const json& settings, const std::vector<LoraFile>& loras) {
  Fields fields;
  fields.add_number(settings, "steps");
  add_sampler(settings.value("sampler", ""), fields);
  for (const char* number : {"cfg", "guidance", "guidance-rescale", "shift", "seed"})
    fields.add_number(settings, number);
  fields.add("Size", fmt::format("{}x{}", settings.value("width", 0), settings.value("height", 0)));
  fields.add("Model", stem_of(settings.value("model", settings.value("transformer", ""))));
  fields.add("Lora hashes", lora_hashes(settings, loras));
  add_plot(settings, fields);
  fields.add("Version", "wick " + settings.value("version", ""));

  std::string text = settings.value("prompt", json::array({""})).front().get<std::string>();
  const std::string tags = lora_tags(loras);
  if (!tags.empty()) text += (text.empty() ? "" : " ") + tags;
  if (const std::string negative = settings.value("negative", ""); !negative.empty())
    text += "\nNegative prompt: " + negative;
  return replace_invalid_utf8(text) + "\n" + fields.text();
}

namespace {

std::string_view trimmed(std::string_view text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

// The end of a value that begins with a quote: behind the quote that closes it, or npos.
size_t end_of_quoted(std::string_view text) {
  for (size_t at = 1; at < text.size(); ++at) {
    if (text[at] == '\\')
      ++at;
    else if (text[at] == '"')
      return at + 1;
  }
  return text.npos;
}

using FieldList = std::vector<std::pair<std::string, std::string>>;

FieldList fields_of(std::string_view line) {
  FieldList fields;
  while (!line.empty()) {
    const size_t colon = line.find(':'), comma = line.find(',');
    if (colon == line.npos) break;
    if (comma < colon) {  // a piece without a name
      line.remove_prefix(comma + 1);
      continue;
    }
    const std::string name(trimmed(line.substr(0, colon)));
    line = trimmed(line.substr(colon + 1));
    const size_t quoted = line.starts_with('"') ? end_of_quoted(line) : line.npos;
    const size_t end = std::min(quoted != line.npos ? quoted : line.find(','), line.size());
    std::string value(trimmed(line.substr(0, end)));
    if (quoted != line.npos)
      if (const json text = json::parse(value, nullptr, /*allow_exceptions=*/false); text.is_string())
        value = text.get<std::string>();
    fields.emplace_back(name, value);
    const size_t next = line.find(',', end);
    line = next == line.npos ? std::string_view() : line.substr(next + 1);
  }
  return fields;
}

// Takes <lora:name:0.8> and other networks, which the web UI does not show the encoder, out of a prompt.
std::vector<std::string> take_networks(std::string& prompt) {
  std::vector<std::string> taken;
  std::string_view rest = prompt;
  std::string kept;
  while (!rest.empty()) {
    const size_t start = std::min(rest.find('<'), rest.size()), end = rest.find('>', start);
    const std::string_view tag = end == rest.npos ? "" : rest.substr(start, end + 1 - start);
    const bool is_network = tag.starts_with("<lora:") || tag.starts_with("<lyco:") || tag.starts_with("<hypernet:");
    if (is_network) taken.emplace_back(tag);
    const size_t shown = is_network ? start : std::min(start + 1, rest.size());
    kept += rest.substr(0, shown);
    rest.remove_prefix(is_network ? end + 1 : shown);
    if (end == rest.npos) break;
  }
  prompt = trimmed(kept + std::string(rest));
  return taken;
}

// Adds what the web UI interprets in a prompt, and Wick reads as words: brackets are weights there, \( is a
// parenthesis.
void add_syntax(const std::string& prompt, std::vector<std::string>& left_out) {
  const auto add = [&](std::string text) {
    if (!contains(left_out, text)) left_out.push_back(std::move(text));
  };
  if (prompt.find_first_of("(\\") != prompt.npos)
    add("weights like (word) or (word:1.3), unless with --prompt-syntax comfyui");
  for (const auto& [kind, text] : foreign_syntax(prompt))
    if (kind != ForeignKind::weight && kind != ForeignKind::escape && kind != ForeignKind::embedding) add(text);
  if (prompt.find('[') != prompt.npos) add("weights like [word]");
}

// The name that Wick has for a sampler with a schedule; else theirs, which --sampler will refuse.
std::string sampler_of(std::string sampler, std::string schedule) {
  constexpr std::string_view kSuffix = " Karras";  // of web UIs before 1.9
  if (sampler.ends_with(kSuffix)) {
    sampler.resize(sampler.size() - kSuffix.size());
    schedule = "Karras";
  }
  if (schedule == "Automatic") schedule = contains(kKarrasByItself, sampler) ? "Karras" : "";
  const std::string kind = contains(kUniform, schedule) ? "Uniform" : schedule;
  for (const SamplerName& known : kSamplerNames)
    if (sampler == known.sampler && kind == (*known.schedule ? known.schedule : "Uniform")) return known.wick;
  return schedule.empty() ? sampler : sampler + " " + schedule;
}

std::optional<std::string> value_of(const FieldList& fields, std::string_view name) {
  const auto found = std::ranges::find_if(fields, [&](const auto& field) { return field.first == name; });
  return found == fields.end() ? std::nullopt : std::optional(found->second);
}

// A number as JSON; another text as it is, which the flag's type refuses.
json number_of(const std::string& text) {
  json number = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return number.is_number() ? number : json(text);
}

bool read_size(const std::string& size, json& settings) {
  const size_t by = size.find('x');
  if (by == size.npos) return false;
  settings["width"] = number_of(size.substr(0, by));
  settings["height"] = number_of(size.substr(by + 1));
  return true;
}

std::string joined(const std::vector<std::string>& texts) {
  constexpr size_t kMost = 12;
  std::string line;
  for (size_t i = 0; i < std::min(texts.size(), kMost); ++i) line += (i == 0 ? "" : ", ") + excerpt(texts[i]);
  return texts.size() > kMost ? fmt::format("{} and {} more", line, texts.size() - kMost) : line;
}

// Puts one field into the settings; false if Wick has nothing like it.
bool read_field(const std::string& name, const std::string& value, json& settings) {
  for (const auto& [setting, theirs] : kNumbers)
    if (name == theirs) {
      const json number = number_of(value);
      settings[setting] = name == "Seed" ? json::array({number}) : number;
      return true;
    }
  if (name == "Size") return read_size(value, settings);
  return name == "Sampler" || contains(kRemarks, name);
}

}  // namespace

Infotext read_infotext(std::string_view text, const std::string& source) {
  text = trimmed(text);
  const size_t end = text.rfind('\n'), last = end == text.npos ? 0 : end + 1;  // where the last line begins
  const FieldList fields = fields_of(text.substr(last));
  check(fields.size() >= 3,
        "{}: expected `parameters` of A1111's web UI, whose last line is \"Steps: 30, Sampler: Euler, ...\", found {}",
        source, quote(text.substr(last)));
  std::string prompt(trimmed(text.substr(0, last))), negative;
  const size_t mark = prompt.starts_with("Negative prompt:") ? 0 : prompt.find("\nNegative prompt:");
  if (mark != prompt.npos) {
    negative = trimmed(std::string_view(prompt).substr(prompt.find(':', mark) + 1));
    prompt = trimmed(std::string_view(prompt).substr(0, mark));
  }

  Infotext read;
  std::vector<std::string> left_out = take_networks(prompt);
  if (!left_out.empty()) left_out.back() += " (pass its file with --lora)";
  add_syntax(prompt, left_out);
  add_syntax(negative, left_out);
  read.settings["prompt"] = json::array({prompt});
  if (!negative.empty()) read.settings["negative"] = negative;
  if (const auto sampler = value_of(fields, "Sampler"))
    read.settings["sampler"] = sampler_of(*sampler, value_of(fields, "Schedule type").value_or(""));
  for (const auto& [name, value] : fields)
    if (!read_field(name, value, read.settings)) left_out.push_back(fmt::format("{}: {}", name, value));
  read.left_out = joined(left_out);
  return read;
}

}  // namespace wick
