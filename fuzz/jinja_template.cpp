// A chat template of unknown origin, on a conversation: it ends within its limits with a text in UTF-8, or with an
// error of one line. The conversation holds flags. They occur only in the given parts of the text.
#include "wick/text/jinja_template.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "wick/core/error.h"
#include "wick/text/unicode.h"

namespace {

using Json = nlohmann::ordered_json;

void expect(bool ok) {
  if (!ok) std::abort();
}

const Json& variables() {
  static const Json made = Json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief. 🚩"},
                 {"role": "user", "content": [{"type": "text", "text": "\u00e9🚩t\u00e9"}, {"type": "image"}]},
                 {"role": "assistant", "content": null, "reasoning_content": "hm🚩\n",
                  "tool_calls": [{"id": "123456789", "function": {"name": "f🚩", "arguments": {"a🚩": 1.5, "b": [true]}}}]},
                 {"role": "tool", "content": "{}", "tool_call_id": "123456789"},
                 {"role": "assistant", "content": "<think>x</think>\n\nFine."}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "<d>🚩", "parameters": {
                 "type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}}],
    "documents": [{"title": "T🚩", "text": "x"}], "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    "n": 3, "s": "Text", "t": " \u65e5\u672c ", "x": 2.5})");
  return made;
}

std::string own_text(const wick::JinjaText& made) {
  std::string own;
  size_t at = 0;
  for (const auto& [start, end] : made.given) {
    expect(start < end && end <= made.text.size() && (at == 0 || start > at));
    own += made.text.substr(at, start - at);
    at = end;
  }
  return own + made.text.substr(at);
}

bool may_write_flags(std::string_view source) {
  return source.find("🚩") != source.npos || source.find("\\u") != source.npos || source.find("\\U") != source.npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const wick::JinjaOptions options{.now = std::tm{},
                                   .limits = {.steps = 300'000, .memory = size_t{16} << 20, .output = size_t{1} << 20}};
  try {
    const std::string source(reinterpret_cast<const char*>(data), size);
    const wick::JinjaText made = wick::JinjaTemplate::parse(source, "model").render(variables(), options);
    expect(made.text.size() <= options.limits.output && made.steps <= options.limits.steps);
    expect(wick::invalid_utf8(made.text) == std::string::npos);
    expect(may_write_flags(source) || own_text(made).find("🚩") == std::string::npos);
    for (const auto& [start, end] : made.generated) expect(start <= end && end <= made.text.size());
  } catch (const wick::Error& error) {
    expect(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
