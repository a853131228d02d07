#include "wick/train/foreign/samples.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/table.h"
#include "wick/train/foreign/tree.h"

namespace wick {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostFileBytes = size_t{1} << 20;

// Keys of a prompt and our flags for them, of kohya's scripts and OneTrainer.
struct SampleKey {
  std::string_view key, flag;
};
constexpr SampleKey kSampleKeys[] = {
    {"negative_prompt", "--n"}, {"width", "--w"},           {"height", "--h"}, {"seed", "--d"},
    {"sample_steps", "--s"},    {"diffusion_steps", "--s"}, {"scale", "--l"},  {"guidance_scale", "--g"},
    {"sample_sampler", "--ss"}};

// Other programs' samplers and ours; a sampler that is not here is the model's own.
constexpr std::pair<std::string_view, std::string_view> kNoiseSamplers[] = {{"DDIM", "ddim"},
                                                                            {"EULER", "euler"},
                                                                            {"EULER_A", "euler-ancestral"},
                                                                            {"DPMPP", "dpmpp-2m"},
                                                                            {"DPMPP_KARRAS", "dpmpp-2m-karras"},
                                                                            {"DPMPP_SDE", "dpmpp-sde"},
                                                                            {"UNIPC", "unipc"},
                                                                            {"ddim", "ddim"},
                                                                            {"euler", "euler"},
                                                                            {"k_euler", "euler"},
                                                                            {"euler_a", "euler-ancestral"},
                                                                            {"k_euler_a", "euler-ancestral"},
                                                                            {"dpmsolver++", "dpmpp-2m"},
                                                                            {"lcm", "lcm"}};

std::string word_of(const Json& value, const std::string& where) {
  const std::vector<std::string> words = words_of(value);
  check_usage(!value.is_structured() && words.size() == 1, "{}: expected one value, found {}", where,
              value.is_structured() ? "several" : "none");
  return words.front();
}

double scale_of(const Json& value, const std::string& where) {
  const std::string word = word_of(value, where);
  const auto scale = number_of(word);
  check_usage(scale && *scale >= 0 && *scale <= 100, "{}: expected a number from 0 to 100, found {}", where,
              quote(word));
  return *scale;
}

bool is_true(const Json& item, const char* key, bool otherwise) {
  const auto found = item.find(key);
  return found == item.end() || !found->is_boolean() ? otherwise : found->get<bool>();
}

void set_sampler(SamplePrompt& prompt, const std::string& name, const std::string& key) {
  const auto* known = std::ranges::find(kNoiseSamplers, name, &std::pair<std::string_view, std::string_view>::first);
  if (known != std::end(kNoiseSamplers))
    prompt.noise_sampler = std::string(known->second);
  else
    prompt.idle.push_back(fmt::format("{} {}", key, printable(name)));
}

void set_key(SamplePrompt& prompt, const std::string& key, const Json& value, bool has_seed) {
  const std::string where = fmt::format("{}: {}", prompt.where, printable(key));
  const auto* known = std::ranges::find(kSampleKeys, key, &SampleKey::key);
  if (value.is_null() || key == "prompt" || key == "enabled" || key == "random_seed" || key == "enum") return;
  if (known != std::end(kSampleKeys)) {
    if (known->flag != "--d" || has_seed) set_by_flag(prompt, known->flag, word_of(value, where), key);
  } else if (key == "cfg_scale") {
    prompt.scale = scale_of(value, where);
  } else if (key == "noise_scheduler") {
    set_sampler(prompt, word_of(value, where), key);
  } else {
    const bool is_off = value == 0 || value == false || value == "" || (key == "frames" && value == 1);
    if (!is_off && key != "length") prompt.idle.push_back(printable(key));
  }
}

// A line, or an object of keys.
SamplePrompt prompt_of_item(const Json& item, const std::string& where) {
  if (item.is_string()) return parse_sample_prompt(item.get<std::string>(), where);
  check_usage(item.is_object(), "{}: expected a prompt or an object of its keys, found {}", where, item.type_name());
  const auto text = item.find("prompt");
  const std::string words = text == item.end() || text->is_null() ? "" : word_of(*text, where + ": prompt");
  check_usage(words.find('\0') == words.npos, "{}: prompt: expected a text, found {}", where, quote(words));
  SamplePrompt prompt{.line = words, .where = where, .prompt = words};
  for (const auto& [key, value] : item.items()) set_key(prompt, key, value, !is_true(item, "random_seed", false));
  return prompt;
}

std::vector<SamplePrompt> prompts_of_list(const Json& list, const std::string& file) {
  check_usage(list.is_array(), "{}: expected a list of prompts, found {}", file, list.type_name());
  check_usage(list.size() <= kMostSamplePrompts, "{}: expected at most {} prompts, found {}", file, kMostSamplePrompts,
              list.size());
  std::vector<SamplePrompt> prompts;
  for (size_t i = 0; i < list.size(); ++i)
    if (!list[i].is_object() || is_true(list[i], "enabled", true))
      prompts.push_back(prompt_of_item(list[i], fmt::format("{}: prompt {}", file, i + 1)));
  check_usage(!prompts.empty(), "{}: expected a prompt, found none", file);
  return prompts;
}

// Keys of [prompt] are those of each [[prompt.subset]].
std::vector<SamplePrompt> prompts_of_kohya(const Json& tree, const std::string& file) {
  const auto prompt = tree.find("prompt");
  check_usage(prompt != tree.end() && prompt->is_object() && prompt->contains("subset"),
              "{}: expected prompts as [[prompt.subset]], found none", file);
  Json shared = *prompt, all = Json::array();
  shared.erase("subset");
  for (const Json& subset : prompt->at("subset")) {
    Json item = shared;
    check_usage(subset.is_object(), "{}: prompt.subset: expected tables, found {}", file, subset.type_name());
    for (const auto& [key, value] : subset.items()) {
      check_usage(!shared.contains(key), "{}: {}: is in [prompt] and in [[prompt.subset]]; expected it once", file,
                  printable(key));
      item[key] = value;
    }
    all.push_back(item);
  }
  return prompts_of_list(all, file);
}

// As sample() of BaseSDTrainProcess.py has them: a seed that a sample has is that of those behind it, unless seeds
// walk.
std::vector<SamplePrompt> prompts_of_job(const Json& tree, const std::string& file) {
  const Json& process = tree.at("config").at("process").at(0);
  const Json settings = process.value("sample", Json::object());
  Json samples = settings.value("samples", Json());
  if (samples.is_null()) {
    samples = Json::array();
    for (const Json& text : settings.value("prompts", Json::array())) samples.push_back({{"prompt", text}});
  }
  const auto of = [&](const Json& item, const char* key, Json otherwise) {
    return item.value(key, settings.value(key, std::move(otherwise)));
  };
  std::vector<SamplePrompt> prompts;
  check_usage(samples.is_array() && samples.size() <= kMostSamplePrompts, "{}: sample: expected at most {} prompts",
              file, kMostSamplePrompts);
  const Json start = settings.value("seed", Json(0));
  Json seed = start;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Json& item = samples[i];
    const std::string where = fmt::format("{}: sample {}", file, i + 1);
    check_usage(item.is_object() && item.contains("prompt"), "{}: expected a prompt, found none", where);
    SamplePrompt prompt = parse_sample_prompt(word_of(item["prompt"], where + ": prompt"), where);
    if (is_true(settings, "walk_seed", false) && start.is_number_integer()) seed = start.get<uint64_t>() + i;
    if (item.contains("seed") && !item["seed"].is_null()) seed = item["seed"];
    const Json negative = of(item, "neg", Json(""));
    if (!prompt.negative) prompt.negative = negative.is_string() ? negative.get<std::string>() : "";
    for (const auto& [flag, key, value, given] :
         {std::tuple("--w", "width", of(item, "width", 512), prompt.width.has_value()),
          {"--h", "height", of(item, "height", 512), prompt.height.has_value()},
          {"--s", "sample_steps", of(item, "sample_steps", 20), prompt.steps.has_value()},
          {"--d", "seed", seed, prompt.seed.has_value()}})
      if (!given && !value.is_null()) set_by_flag(prompt, flag, word_of(value, fmt::format("{}: {}", where, key)), key);
    prompt.scale = prompt.cfg ? *prompt.cfg : scale_of(of(item, "guidance_scale", 7), where + ": guidance_scale");
    prompt.cfg.reset();
    if (const Json sampler = settings.value("sampler", Json()); sampler.is_string() && sampler != "flowmatch")
      set_sampler(prompt, sampler.get<std::string>(), "sampler");
    for (const char* key : {"ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3"})
      if (item.contains(key) && !item[key].is_null()) prompt.idle.emplace_back(key);
    prompts.push_back(std::move(prompt));
  }
  check_usage(!prompts.empty(), "{}: sample: expected a prompt, found none", file);
  return prompts;
}

bool is_job(const Json& tree) {
  if (!tree.is_object() || !tree.contains("job") || !tree.contains("config") || !tree["config"].is_object())
    return false;
  const Json process = tree["config"].value("process", Json());
  return process.is_array() && !process.empty() && process[0].is_object() &&
         process[0].value("sample", Json::object()).is_object();
}

}  // namespace

std::vector<SamplePrompt> read_foreign_samples(const std::filesystem::path& file) {
  const std::string name = file.string();
  if (syntax_of(file) == OptionSyntax::toml) return prompts_of_kohya(read_option_tree(file), name);
  const Json tree = syntax_of(file) == OptionSyntax::json ? parse_json_in_order(read_file(file, kMostFileBytes), name)
                                                          : read_option_tree(file);
  if (is_job(tree)) return prompts_of_job(tree, name);
  return prompts_of_list(tree.is_object() && tree.contains("samples") ? tree["samples"] : tree, name);
}

}  // namespace wick
