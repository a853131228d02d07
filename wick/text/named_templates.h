// Chat templates of Wick's own, for models that carry none: the families' forms of the roles system, user and
// assistant.
#pragma once

#include <string_view>
#include <vector>

namespace wick {

struct NamedTemplate {
  std::string_view name, jinja;
  std::vector<std::string_view> marks;  // control tokens that mark its turns
};

const std::vector<NamedTemplate>& named_templates();

}  // namespace wick
