#include "wick/text/template_traits.h"

#include <nlohmann/json.hpp>
#include <string>

#include "wick/core/error.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char *kWord = "wick-probe-word", *kKey = "wick_probe_key";

// The text, or nothing where the template fails.
std::string tried(const JinjaTemplate& jinja, const OrderedJson& others, const std::tm& now, OrderedJson messages) {
  OrderedJson variables{{"messages", std::move(messages)}, {"tools", nullptr}, {"documents", nullptr}};
  variables["add_generation_prompt"] = false;
  variables.update(others);
  try {
    return jinja.render(variables, {.now = now}).text;
  } catch (const Error&) {
    return "";
  }
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

OrderedJson question(OrderedJson content) { return {{"role", "user"}, {"content", std::move(content)}}; }

// A conversation with a call in the middle, as templates that count turns take it.
OrderedJson with_call(OrderedJson arguments) {
  const OrderedJson call{{"id", "abcdef012"},
                         {"type", "function"},
                         {"function", {{"name", "probe"}, {"arguments", std::move(arguments)}}}};
  const OrderedJson answer{{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array({call})}};
  const OrderedJson result{{"role", "tool"}, {"tool_call_id", "abcdef012"}, {"name", "probe"}, {"content", "done"}};
  return OrderedJson::array({question("Call it."), answer, result});
}

std::string text_of_parts(const OrderedJson& parts) {
  std::string all;
  for (const OrderedJson& part : parts) {
    const bool is_text = part.is_string() || (part.is_object() && part.value("type", "") == "text" &&
                                              part.contains("text") && part.at("text").is_string());
    check(is_text, "the chat template takes parts of text alone, found {}", quote(part.dump().substr(0, 80)));
    if (&part != &parts.front()) all += "\n";
    all += part.is_string() ? part.get<std::string>() : part.at("text").get<std::string>();
  }
  return all;
}

}  // namespace

TemplateTraits traits_of(const JinjaTemplate& jinja, const OrderedJson& variables, const std::tm& now) {
  const auto rendered = [&](OrderedJson messages) { return tried(jinja, variables, now, std::move(messages)); };
  TemplateTraits traits;
  const std::string parts =
      rendered(OrderedJson::array({question(OrderedJson::array({{{"type", "text"}, {"text", kWord}}}))}));
  traits.takes_parts = has(parts, kWord) && !has(parts, "'text'") && !has(parts, "\"text\"");
  // As JSON writes them, or a template of its own: anything but Python's quotes, or quotes within a string.
  const std::string object = rendered(with_call({{kKey, kWord}}));
  traits.takes_objects = has(object, kKey) && has(object, kWord) && !has(object, fmt::format("'{}'", kKey));
  const std::string text = rendered(with_call(fmt::format(R"({{"{}": "{}"}})", kKey, kWord)));
  traits.takes_texts = has(text, fmt::format(R"("{}": "{}")", kKey, kWord));
  return traits;
}

OrderedJson TemplateTraits::fitted(const OrderedJson& messages) const {
  OrderedJson made = messages;
  for (OrderedJson& message : made) {
    if (const auto content = message.find("content"); content != message.end() && content->is_array() && !takes_parts)
      *content = text_of_parts(*content);
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (OrderedJson& call : *calls) {
      OrderedJson* function = call.is_object() && call.contains("function") ? &call["function"] : &call;
      if (!function->is_object() || !function->contains("arguments")) continue;
      OrderedJson& arguments = (*function)["arguments"];
      if (arguments.is_string() && !takes_texts && takes_objects)
        arguments = parse_json_in_order(arguments.get<std::string>(), "the arguments of a call");
      else if (arguments.is_object() && !takes_objects && takes_texts)
        arguments = arguments.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    }
  }
  return made;
}

}  // namespace wick
