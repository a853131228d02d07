// Runs chat templates: the part of Jinja 3.1 that they use, as transformers sets it up (utils/chat_template_utils.py):
// an immutable sandbox with trim_blocks, lstrip_blocks, loop controls, {% generation %}, and with raise_exception,
// strftime_now and a tojson that escapes nothing for HTML.
//
// A template comes with a model from anywhere. It gets the variables that it is given and nothing else, and all that it
// does is counted before it is done (text/jinja/limits.h). Templates of other engines' making, which read other
// templates (include, import, extends), are refused. Integers have 64 bits.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wick/text/jinja/limits.h"

namespace wick {

struct JinjaOptions {
  std::optional<std::tm> now;  // what strftime_now tells; the local time of the call if there is none
  jinja::Limits limits{};
  // Variables whose strings are given: others than the template's author and the caller chose them.
  std::vector<std::string> given{"messages", "tools", "documents"};
  std::optional<size_t> message;  // only the strings of this one of the messages are given
};

struct JinjaText {
  std::string text;
  // Where {% generation %} blocks wrote: byte ranges of the text, as transformers has them for its assistant mask.
  std::vector<std::pair<size_t, size_t>> generated;
  // What is given of the text, and what was made of it, in order: byte ranges that do not touch each other. Control
  // tokens are looked for outside of them. The messages' roles are not given, since templates make control tokens of
  // them ('<|' + role + '|>'): the caller lets no others pass than those that there are.
  std::vector<std::pair<size_t, size_t>> given{};
  std::vector<std::string> missing{};  // variables that the template asked for and was not given
  size_t steps = 0;
};

class JinjaTemplate {
 public:
  // `name` stands in front of errors. Throws Error, which names the line, if the source is not such a template.
  static JinjaTemplate parse(const std::string& source, std::string name);

  // `variables` is an object; dicts keep its order. Throws Error, which names the line, where the template fails,
  // refuses (raise_exception) or passes a limit.
  JinjaText render(const nlohmann::ordered_json& variables, const JinjaOptions& options = {}) const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace wick
