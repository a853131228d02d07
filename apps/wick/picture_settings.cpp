#include "picture_settings.h"

#include <algorithm>

#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/pipelines/infotext.h"

namespace wick::cli {
namespace {

using nlohmann::json;

// Beside the flags.
constexpr const char *kVersion = "version", *kLoraHashes = "lora-hashes";

// The hash of a LoRA's weights that its file tells, as kohya's trainers and Wick write it, in the web UI's length;
// empty if it tells none.
std::string told_hash(const LoraFile& lora) {
  const std::filesystem::path file = lora_weights(lora.path);
  if (file.extension() != ".safetensors") return {};
  const auto metadata = SafetensorsFile::open(file).metadata();
  const auto hash = metadata.find("sshs_model_hash");
  return hash == metadata.end() ? std::string() : hash->second.substr(0, 12);
}

// As the command line would have it.
std::string word_of(const json& value, const std::string& where) {
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  check(text.find('\0') == text.npos, "{}: expected a text, found one with a NUL character", where);
  return text;
}

std::string name_of(const CLI::Option& option) { return option.get_name().substr(2); }

// Without `wick` and `parameters`.
[[noreturn]] void fail_without_settings(const std::string& picture, const ImageTexts& texts) {
  fail("{}: expected a picture that carries its settings, `wick` or `parameters`, found {}", picture,
       texts.contains("workflow") || texts.contains("prompt") ? "ComfyUI's workflow alone, which Wick does not read"
       : texts.empty() ? "none; a program that saved it again may have dropped them"
                       : "other texts alone");
}

}  // namespace

void PictureSettings::carry_as_given(CLI::Option* option, Carried how) {
  const bool is_switch = option->get_items_expected_max() == 0;
  const auto value = [option, is_switch, otherwise = how.otherwise]() -> json {
    if (is_switch) return option->count() > 0 && option->as<bool>();
    return option->count() > 0 ? json(option->results().back()) : otherwise;
  };
  flags_.push_back({option, value, is_switch ? check_type<bool> : check_type<std::string>, std::move(how)});
}

const PictureSettings::Flag* PictureSettings::find(const std::string& key) const {
  const auto found = std::ranges::find_if(flags_, [&](const Flag& flag) { return name_of(*flag.option) == key; });
  return found == flags_.end() ? nullptr : &*found;
}

bool PictureSettings::is_given(const std::string& flag) const {
  const Flag* found = find(flag.substr(2));
  return found && found->option->count() > 0 && std::ranges::find(repeated_, flag) == repeated_.end();
}

// The command line has the flag, or one that takes its place.
bool PictureSettings::is_void(const Flag& flag) const {
  const auto excluded = flag.option->get_excludes();
  return is_given(flag.option->get_name()) ||
         std::ranges::any_of(flag.how.unless, [&](const std::string& other) { return is_given(other); }) ||
         std::ranges::any_of(excluded, [&](const CLI::Option* other) { return is_given(other->get_name()); });
}

void PictureSettings::take(const json& settings, const std::string& source) {
  for (const auto& [key, value] : settings.items()) {
    if (key == kVersion || key == kLoraHashes) continue;
    const std::string where = fmt::format("{}: its setting {}", source, quote(key));
    const Flag* flag = find(key);
    check(flag, "{}: expected a flag of wick {}, which has none of this name; repeat it with the wick that drew it",
          where, WICK_VERSION);
    if (is_void(*flag)) continue;
    flag->check_type(value, where);
    std::vector<std::string> words;
    for (const json& part : value.is_array() ? value : json::array({value})) words.push_back(word_of(part, where));
    if (words.empty()) continue;
    try {
      flag->option->add_result(words);
      flag->option->run_callback();
    } catch (const CLI::ParseError& problem) {
      const std::string why = problem.what(), name = flag->option->get_name();
      fail("{}: {}; give another by {}", where, why.substr(why.starts_with(name + ": ") ? name.size() + 2 : 0), name);
    }
    repeated_.push_back(flag->option->get_name());
  }
}

void PictureSettings::repeat(const std::filesystem::path& picture) {
  picture_ = picture.string();
  const ImageTexts texts = read_image_texts(picture);
  if (const auto wick = texts.find("wick"); wick != texts.end()) {
    const std::string source = picture_ + ": its text `wick`";
    const json settings = as_object(parse_json(wick->second, source), source);
    const auto version = get<std::string>(settings, kVersion, source);
    if (version != WICK_VERSION)
      notes_.push_back(fmt::format("drawn by wick {}; pictures of {} may differ", version, WICK_VERSION));
    if (settings.contains(kLoraHashes)) hashes_ = as_object(settings[kLoraHashes], source + ": " + kLoraHashes);
    return take(settings, picture_);
  }
  const auto parameters = texts.find("parameters");
  if (parameters == texts.end()) fail_without_settings(picture_, texts);
  const Infotext infotext = read_infotext(parameters->second, picture_);
  take(infotext.settings, picture_);
  is_foreign_ = true;
  notes_.push_back("another program drew it, whose seeds make other noise; " +
                   (infotext.left_out.empty() ? "all else is repeated" : "left out: " + infotext.left_out));
}

void PictureSettings::refuse(const std::string& flag, const std::string& why) {
  check_usage(std::ranges::find(repeated_, flag) != repeated_.end(), "{}: {}", flag, why);
  notes_.push_back(fmt::format("its {} is left out: {}", flag, why));
}

bool PictureSettings::has_foreign_prompts() const {
  return is_foreign_ && std::ranges::find(repeated_, "--prompt") != repeated_.end();
}

void PictureSettings::print_notes() const {
  for (const std::string& note : notes_) fmt::print(stderr, "wick: {}: {}\n", printable(picture_), printable(note));
}

json PictureSettings::in_use() const {
  json settings{{kVersion, WICK_VERSION}};
  for (const Flag& flag : flags_) {
    json value = flag.how.is_used && !flag.how.is_used() ? nullptr : flag.value();
    if (!value.is_null()) settings[name_of(*flag.option)] = std::move(value);
  }
  return settings;
}

ImageTexts PictureSettings::texts(const std::vector<LoraFile>& loras) {
  json settings = in_use();
  for (const LoraFile& lora : loras) {
    const std::string path = lora.path.string(), hash = told_hash(lora);
    if (!hash.empty()) settings[kLoraHashes][path] = hash;
    if (!hashes_.contains(path) || hashes_[path] == hash) continue;
    const std::string note = fmt::format("drawn with another LoRA than {} is now", path);
    if (std::ranges::find(notes_, note) == notes_.end()) notes_.push_back(note);
  }
  return {{"parameters", infotext_of(settings, loras)},
          {"wick", settings.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace)}};
}

}  // namespace wick::cli
