// The settings that a picture carries: the values of flags of `generate` that it was drawn with, so that --from repeats
// it. They are the picture's text `wick`, a JSON object of flags by their names without dashes, with `version` and
// `lora-hashes`.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "wick/io/image.h"
#include "wick/io/json.h"
#include "wick/nn/adapter.h"

namespace wick::cli {

// A value as JSON: null for none, a float by its shortest decimals.
inline nlohmann::json setting(bool value) { return value; }
inline nlohmann::json setting(const std::string& value) { return value.empty() ? nullptr : nlohmann::json(value); }
template <class T>
requires std::is_arithmetic_v<T> nlohmann::json setting(T value) {
  return nlohmann::json::parse(fmt::format("{}", value));
}
template <class T>
nlohmann::json setting(const std::vector<T>& values) {
  return values.empty() ? nullptr : nlohmann::json(values);
}
template <class T>
nlohmann::json setting(const std::optional<T>& value) {
  if (!value) return nullptr;
  if constexpr (std::is_same_v<T, std::string>)
    return *value;  // an empty text is one
  else
    return setting(*value);
}

struct Carried {
  std::vector<std::string> unless = {};  // flags beside --from that make the picture's value of this one void
  nlohmann::json otherwise = nullptr;    // the value in use of one that is carried as given, where it is not
  std::function<bool()> is_used = {};    // whether the value says something about the picture; it does unless given
};

class PictureSettings {
 public:
  // Lets pictures carry a flag: the value in use once all is settled, which is read from its variable then.
  template <class T>
  void carry(CLI::Option* option, const T& variable, Carried how = {}) {
    flags_.push_back({option, [&variable] { return setting(variable); }, check_type<T>, std::move(how)});
  }
  // The same for a switch, or for a text, as the command line has it.
  void carry_as_given(CLI::Option* option, Carried how = {});

  // Gives the flags that the command line lacks the values that a picture carries: as `wick` has them, or `parameters`
  // of A1111's web UI. Throws Error for a picture without, and for settings that this `wick` does not understand.
  void repeat(const std::filesystem::path& picture);

  // A setting that the model has no use for: a UsageError if it is the command line's; one of the picture's is noted.
  void refuse(const std::string& flag, const std::string& why);
  // Says on standard error what is not repeated.
  void print_notes() const;

  // Whether another program drew the picture and its prompts are repeated. The notes then name that program's syntax.
  bool has_foreign_prompts() const;

  // The texts of a picture that is drawn now, with these LoRAs, whose hashes they tell too.
  ImageTexts texts(const std::vector<LoraFile>& loras);

 private:
  using TypeCheck = void (*)(const nlohmann::json& value, const std::string& where);
  struct Flag {
    CLI::Option* option;
    std::function<nlohmann::json()> value;
    TypeCheck check_type;
    Carried how;
  };

  template <class T>
  struct Element {  // of a list, or in an optional
    using Type = T;
    static constexpr bool is_list = false;
  };
  template <class T>
  struct Element<std::vector<T>> {
    using Type = T;
    static constexpr bool is_list = true;
  };
  template <class T>
  struct Element<std::optional<T>> : Element<T> {};

  template <class T>
  static void check_type(const nlohmann::json& value, const std::string& where) {
    if constexpr (Element<T>::is_list)
      for (const nlohmann::json& part : as_list(value, where)) as<typename Element<T>::Type>(part, where);
    else
      as<typename Element<T>::Type>(value, where);
  }

  const Flag* find(const std::string& key) const;
  bool is_given(const std::string& flag) const;
  bool is_void(const Flag& flag) const;
  nlohmann::json in_use() const;
  void take(const nlohmann::json& settings, const std::string& source);

  std::vector<Flag> flags_;
  std::string picture_;                               // that is repeated
  bool is_foreign_ = false;                           // another program drew it
  nlohmann::json hashes_ = nlohmann::json::object();  // of its LoRAs, by their paths
  std::vector<std::string> notes_;
  std::vector<std::string> repeated_;  // flags that have its values
};

}  // namespace wick::cli
