// What a chat template can write of the forms in which people have messages: it is tried on a small conversation.
#pragma once

#include <ctime>
#include <nlohmann/json_fwd.hpp>

#include "wick/text/jinja_template.h"

namespace wick {

struct TemplateTraits {
  bool takes_parts = false;                         // "content" as a list of parts
  bool takes_objects = false, takes_texts = false;  // a call's "arguments"

  // The messages in forms that the template writes: parts as one text, with a line end between them, and arguments as
  // text or object. Unchanged where it takes what there is, or neither form. Throws Error for a part that is no text
  // where the template takes text alone.
  nlohmann::ordered_json fitted(const nlohmann::ordered_json& messages) const;
};

// `variables`: all but messages, tools, documents and add_generation_prompt.
TemplateTraits traits_of(const JinjaTemplate& jinja, const nlohmann::ordered_json& variables, const std::tm& now);

}  // namespace wick
