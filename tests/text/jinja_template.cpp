// Chat templates, held to the byte against transformers (tools/golden/chat_templates.py): some five hundred small ones,
// and 39 of our own on two hundred conversations. These have, one or more each, the traits of public templates:
//
//   Yi, Hermes, LLaMA-Factory   ChatML by concatenation; a default system prompt; messages[1:]; | string
//   Llama 2, Mistral v1         turns that alternate or raise; != of two comparisons; strip()
//   Mistral v3, tekken          selectattr, namespaces that count, a for with a filter over items(), slices of tojson
//   Mistral Small               strftime_now, parts of content, block set
//   Llama 3, 3.1, 4             trim, tojson(indent=4), reject, messages set anew, `in` of dicts, map(attribute=)
//   Gemma 2, 3, 4               roles renamed, parts, recursive macros over schemas, dictsort
//   Phi 3, 4                    templates of one line; \r\n
//   DeepSeek                    flags in a namespace, thoughts split off, fullwidth characters, nextitem
//   GLM                         text outside tags with all kinds of white space, a macro for parts, loops over dicts
//   gpt-oss                     macros that write types, defaults by name, raise_exception, get
//   Qwen 2.5, 3, 3.5            runs of tool answers, messages[::-1], a counting macro, | items, | safe
//   Command, Granite            documents, dicts as tables, truncate, title, sort
//   SmolLM, OLMo, Nemotron      modes in the system prompt, message.get, list sums, break, continue, previtem
//   Alpaca, Vicuna, Zephyr      tags on lines of their own, range
//   TRL                         generation blocks: around all, in macros, in each other, in block set
//   others                      cycle, changed, groupby, batch, recursive loops, raw, with, call, filter blocks,
//   varargs

#include "wick/text/jinja_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "source_dir.h"
#include "text/hash.h"
#include "wick/core/error.h"

namespace wick {
namespace {

using Json = nlohmann::ordered_json;

Json golden(const std::string& name) {
  return Json::parse(std::ifstream(test::source_dir() / "tests/golden/chat_templates" / name));
}

JinjaOptions at_noon() {
  std::tm now{};
  now.tm_year = 124, now.tm_mon = 6, now.tm_mday = 26, now.tm_hour = 13, now.tm_min = 4, now.tm_sec = 5;
  now.tm_wday = 5, now.tm_yday = 207;
  return {.now = now};
}

// The text, or the error.
struct Outcome {
  JinjaText text;
  std::string error;
};

Outcome outcome(const std::string& source, const Json& variables, JinjaOptions options = at_noon()) {
  try {
    return {JinjaTemplate::parse(source, "model").render(variables, options), ""};
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

std::string error_of(const std::string& source, const Json& variables = Json::object()) {
  return outcome(source, variables).error;
}

std::string text_of(const std::string& source, const Json& variables = Json::object()) {
  const Outcome made = outcome(source, variables);
  return made.error.empty() ? made.text.text : made.error;
}

std::string hash_of(const Outcome& outcome) {
  test::Fnv1a hash;
  hash.add(outcome.error.empty() ? outcome.text.text : "failed");
  for (const auto& [start, end] : outcome.text.generated) hash.add(fmt::format(",{}-{}", start, end));
  return hash.hex();
}

using Spans = std::vector<std::pair<size_t, size_t>>;

TEST(JinjaTemplate, GivesWhatJinjaGivesForSmallTemplates) {
  const Json all = golden("cases.json");
  for (const Json& row : all.at("cases")) {
    const auto source = row[0].get<std::string>();
    const Outcome made = outcome(source, all.at("variables"));
    if (row[1].is_null()) {
      EXPECT_NE(made.error, "") << source << "\ngives: " << made.text.text;
      EXPECT_EQ(made.error.find('\n'), std::string::npos) << made.error;
      continue;
    }
    EXPECT_EQ(made.error, "") << source;
    EXPECT_EQ(made.text.text, row[1].get<std::string>()) << source;
    EXPECT_EQ(made.text.generated, row.size() > 2 ? row[2].get<Spans>() : Spans()) << source;
  }
}

TEST(JinjaTemplate, RendersConversationsAsTransformersDoes) {
  const Json all = golden("chats.json");
  const Json& conversations = all.at("conversations");
  for (const Json& row : all.at("templates")) {
    const auto name = row.at("name").get<std::string>(), hashes = row.at("hashes").get<std::string>();
    const auto made = JinjaTemplate::parse(row.at("source"), name);
    for (const Json& text : row.at("texts")) {
      const JinjaText rendered = made.render(conversations[text[0].get<size_t>()], at_noon());
      EXPECT_EQ(rendered.text, text[1].get<std::string>()) << name << ", conversation " << text[0];
      EXPECT_EQ(rendered.generated, text[2].get<Spans>()) << name << ", conversation " << text[0];
    }
    ASSERT_EQ(hashes.size(), conversations.size() * 8);
    for (size_t i = 0; i < conversations.size(); ++i) {
      const Outcome result = outcome(row.at("source"), conversations[i]);
      EXPECT_EQ(hash_of(result), hashes.substr(i * 8, 8)) << name << ", conversation " << i << ": " << result.error;
    }
  }
}

TEST(JinjaTemplate, ErrorsNameTemplateAndLineInOneLine) {
  EXPECT_EQ(error_of("a\n{{ x.y }}"), "model: line 2 of the chat template: expected a variable \"x\", found none");
  EXPECT_EQ(error_of("\n\n{% if x %}"),
            "model: line 3 of the chat template: expected {% endif %}, found the end of the template");
  EXPECT_EQ(error_of("{{ raise_exception('only\nusers') }}"),
            "model: line 1 of the chat template: the template refuses this: only\\x0ausers");
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"),
            "model: line 1 of the chat template: expected an integer of 64 bits from +, found a larger one");
  EXPECT_EQ(error_of("{{ 'a' + 1 }}"), "model: line 1 of the chat template: expected values for +, found str and int");
  EXPECT_EQ(error_of("{{ x }}", {{"x", "\xff"}}),
            "model: the chat template's variable \"x\": expected texts in UTF-8, found other bytes");
  EXPECT_EQ(error_of("{{ x }}", {{"x", Json::array({UINT64_MAX})}}),
            "model: the chat template's variable \"x\": expected integers of 64 bits, found 18446744073709551615");
  EXPECT_NE(error_of("\xff"), "");
  for (const char* source :
       {"{{ '%\n' % 'x' }}", "{{ namespace(**{'_\n': 1}) }}", "{{ '%(a\n)s' % {} }}", "{{ x['\n'].y }}"})
    EXPECT_EQ(error_of(source).find('\n'), std::string::npos) << source;
}

TEST(JinjaTemplate, TellsTheTimeThatItIsGiven) {
  EXPECT_EQ(text_of("{{ strftime_now('%d %b %Y') }}"), "26 Jul 2024");
  EXPECT_NE(error_of("{{ strftime_now('%99999999Y') }}"), "");
  EXPECT_EQ(JinjaTemplate::parse("{{ strftime_now('%Y') | length }}", "model").render(Json::object()).text, "4");
}

// Each would take hours or all memory if it were not counted.
TEST(JinjaTemplate, HasLimits) {
  JinjaOptions options = at_noon();
  options.limits.steps = 4'000'000, options.limits.memory = size_t{64} << 20;
  const auto error = [&](const std::string& source) { return outcome(source, Json::object(), options).error; };
  for (const char* source : {
           "{% for i in range(100000) %}{% for j in range(100000) %}{{ j }}{% endfor %}{% endfor %}",
           "{{ 'x' * 99999999999 }}",
           "{{ [0] * 99999999999 }}",
           "{{ [0] * 9223372036854775807 }}",
           "{{ ('a' * 1000000) * 1000000 }}",
           "{{ 'x'.center(9000000000) }}",
           "{{ 'x'.zfill(9000000000) }}",
           "{{ '\t'.expandtabs(9000000000) }}",
           "{{ '%9999999999d' % 1 }}",
           "{{ '%.999999999f' % 1 }}",
           "{{ '{:>9999999999}'.format(1) }}",
           "{{ 'x' | indent(99999999999, true) }}",
           "{{ [1] | tojson(indent=99999999999) }}",
           "{{ [1] | batch(99999999999, 0) | list }}",
           "{{ [1] | slice(99999999999) | list }}",
           "{{ range(99999999) }}",
           "{{ 2 ** 99999999 }}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}",
           "{% set ns = namespace(a=[0]) %}{% for i in range(90) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
           "{% set ns = namespace(a='x') %}{% for i in range(90) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
           "{% set ns = namespace(a='x') %}{% for i in range(90) %}{% set ns.a = ns.a.replace('x', 'xxxx') %}{% endfor "
           "%}",
           "{% set a = 'x' * 1000000 %}{% for i in range(100000) %}{% if 'y' in a %}{% endif %}{% endfor %}",
           "{% set a = 'x' * 100000000 %}{{ a | e | e }}{{ a }}{{ a }}",
           "{% set a = range(100000) | list %}{% for i in a %}{{ a | sort | first }}{% endfor %}",
           "{% for i in range(100000) %}{% set x = namespace(a='x' * 10000) %}{% endfor %}",
           "{% set a = 'a' * 10000000 %}{{ ('a' * 5000000 ~ 'b') in a }}{% for i in range(1000) %}{{ a.rfind('b' ~ "
           "a[:100]) }}{% endfor %}",
           "{{ dict(**dict(range(1000) | batch(2))) }}",
       })
    EXPECT_NE(error(source), "") << source;
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += '(';
  EXPECT_NE(error("{{ " + deep), "");
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += " + 1";
  EXPECT_NE(error(chain + " }}"), "");
}

// Values that hold themselves are let go of: the sanitizer looks for leaks.
TEST(JinjaTemplate, LetsGoOfValuesThatHoldThemselves) {
  EXPECT_EQ(text_of("{% set n = namespace() %}{% set n.a = [n, n.a] %}{% set n.b = n.a.index %}{{ n.a | length }}"),
            "2");
  EXPECT_EQ(text_of("{% set n = namespace() %}{% for i in [1, 2] %}{% set n.l = loop %}{{ loop.changed(loop, n) }}"
                    "{% endfor %}"),
            "TrueFalse");
  EXPECT_EQ(text_of("{% macro m() %}{{ m is defined }}{% endmacro %}{% set n = namespace(m=m) %}{{ n.m() }}"), "True");
  EXPECT_NE(
      error_of("{% set n = namespace() %}{% for i in [1] %}{% set n.l = loop %}{% endfor %}{{ n.l.changed(n.l) }}"),
      "");
}

// Templates with bytes changed end, in bounded steps, with a text or with an error of one line.
TEST(JinjaTemplate, MutatedTemplatesEnd) {
  const Json all = golden("chats.json");
  std::vector<std::string> sources;
  for (const Json& row : all.at("templates")) sources.push_back(row.at("source"));
  std::mt19937 random(20240726);
  const auto below = [&](size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random); };
  constexpr std::string_view pieces[] = {"{%",       "%}", "{{",  "}}",  "{#",   "|",           "(",        ")",
                                         "[",        "]",  " ~ ", " * ", "'",    "99999999",    "range(9)", "loop",
                                         ".items()", ":",  "-",   "\\",  "\xc3", "{% endfor %}"};
  JinjaOptions options = at_noon();
  options.limits = {.steps = 200'000, .memory = size_t{16} << 20, .output = size_t{1} << 20};
  size_t rendered = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string source = sources[below(sources.size())];
    for (size_t change = 0; change <= below(2); ++change) {
      const size_t at = below(source.size()), count = below(12);
      const std::string_view piece = pieces[below(std::size(pieces))];
      if (below(2) == 0)
        source.insert(at, piece);
      else
        source.replace(at, count, below(2) == 0 ? std::string(piece) : source.substr(below(source.size()), count));
    }
    const Outcome made = outcome(source, all.at("conversations")[below(all.at("conversations").size())], options);
    EXPECT_EQ(made.error.find('\n'), std::string::npos) << made.error;
    EXPECT_LE(made.text.steps, options.limits.steps);
    rendered += made.error.empty() ? 1 : 0;
  }
  EXPECT_GT(rendered, 200u);
}

}  // namespace
}  // namespace wick
