// Chat templates, held to the byte against transformers (tools/golden/chat_templates.py): some five hundred small ones,
// and more than forty of our own on two hundred conversations. tests/text/chat_ids.cpp lists their traits.

#include "wick/text/jinja_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
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

// The text with what is given of it in brackets.
std::string shown(const Outcome& outcome) {
  if (!outcome.error.empty()) return outcome.error;
  const std::string& text = outcome.text.text;
  const auto& given = outcome.text.given;
  std::string made;
  size_t at = 0;
  for (const auto& [start, end] : given) {
    EXPECT_TRUE(start < end && end <= text.size() && (at == 0 || start > at)) << start << "-" << end;
    made += text.substr(at, start - at) + "«" + text.substr(start, end - start) + "»";
    at = end;
  }
  return made + text.substr(at);
}

// The text without what is given of it.
std::string own_text(const JinjaText& rendered) {
  std::string made;
  size_t at = 0;
  for (const auto& [start, end] : rendered.given) {
    made += rendered.text.substr(at, start - at);
    at = end;
  }
  return made + rendered.text.substr(at);
}

const Json& given_variables() {
  static const Json made = {{"x", "ab cd"}, {"d", {{"key", "value"}}}, {"lines", "1\r\n2"}, {"own", "ab cd"}};
  return made;
}

std::string shown_of(const std::string& source) {
  JinjaOptions options = at_noon();
  options.given = {"x", "d", "lines"};
  return shown(outcome(source, given_variables(), options));
}

TEST(JinjaTemplate, KnowsWhatExpressionsKeepOfGivenStrings) {
  constexpr std::pair<const char*, const char*> rows[] = {
      {"own", "ab cd"},
      {"'<' ~ x ~ '>'", "<«ab cd»>"},
      {"'<' + x + '>'", "<«ab cd»>"},
      {"x ~ 5 ~ x + x", "«ab cd»5«ab cdab cd»"},
      {"x * 2", "«ab cdab cd»"},
      {"('<' ~ x) * 2", "<«ab cd»<«ab cd»"},
      {"x[0]", "«a»"},
      {"('é' ~ x)[1] ~ ('é' ~ x)[0]", "«a»é"},
      {"('<' ~ x)[1:3]", "«ab»"},
      {"('é' ~ x)[:2]", "é«a»"},
      {"('<' ~ x)[::-1]", "«dc ba»<"},
      {"('<' ~ x)[::2]", "<«bc»"},
      {"('<' ~ x) | reverse", "«dc ba»<"},
      {"x | first ~ (x | list | last)", "«ad»"},
      {"('<' ~ x) | list | join('.')", "<.«a».«b».« ».«c».«d»"},
      {"['q', x, 'q'] | join", "q«ab cd»q"},
      {"['q', 'q'] | join(x)", "q«ab cd»q"},
      {"x.join(['q', x])", "q«ab cdab cd»"},
      {"(' ' ~ x ~ ' ').strip()", "«ab cd»"},
      {"(' ' ~ x ~ ' ').lstrip()", "«ab cd» "},
      {"(' ' ~ x ~ ' ').rstrip('d ')", " «ab c»"},
      {"(' ' ~ x ~ '.') | trim", "«ab cd»."},
      {"('q,' ~ x).split(',') | join('|')", "q|«ab cd»"},
      {"('q ' ~ x).split() | join('|')", "q|«ab»|«cd»"},
      {"(x ~ ' q').rsplit(' ', 1) | join('|')", "«ab cd»|q"},
      {"('q\n' ~ x ~ '\nq').splitlines(true) | join('|')", "q\n|«ab cd»\n|q"},
      {"('q=' ~ x).partition('=') | join('|')", "q|=|«ab cd»"},
      {"x.rpartition(' ') | join('|')", "«ab»|« »|«cd»"},
      {"x.replace(' ', '--')", "«ab»--«cd»"},
      {"'q-q'.replace('-', x)", "q«ab cd»q"},
      {"x | replace('', '.', 2)", ".«a».«b cd»"},
      {"('<' ~ x).removeprefix('<')", "«ab cd»"},
      {"(x ~ '>').removesuffix('d>')", "«ab c»"},
      {"'%s|%3s|%.1s|%r' % (x, 'q', x, x)", "«ab cd»|  q|«a»|«'ab cd'»"},
      {"('%s' ~ x) | format('q')", "q«ab cd»"},
      {"'{}|{:*>7}|{!r}|{}'.format(x, x, x, 'q')", "«ab cd»|**«ab cd»|«'ab cd'»|q"},
      {"'{a}'.format_map({'a': x})", "«ab cd»"},
      {"x.center(9, '*')", "**«ab cd»**"},
      {"'q'.center(3, x[0])", "«a»q«a»"},
      {"(x | center(7)) ~ x.ljust(6) ~ x.rjust(6, '.') ~ x.zfill(6)", " «ab cd» «ab cd» .«ab cd»0«ab cd»"},
      {"('é\t' ~ x).expandtabs(3)", "é  «ab cd»"},
      {"('q' ~ x).upper()", "Q«AB CD»"},
      {"('q' ~ x) | title", "Q«ab Cd»"},
      {"('ß' ~ x) | upper", "«SSAB CD»"},
      {"('q' ~ x).swapcase() ~ (x | capitalize)", "Q«AB CDAb cd»"},
      {"('q\n' ~ x) | indent(2, true)", "  q\n  «ab cd»"},
      {"'q\nq' | indent(x)", "q\n«ab cd»q"},
      {"lines | indent(1)", "«1\n» «2»"},
      {"x | truncate(4, true, '.', 0)", "«ab »."},
      {"('<' ~ x) | escape", "«&lt;ab cd»"},
      {"('<' | escape) + x", "&lt;«ab cd»"},
      {"('/ ' ~ x) | urlencode", "/%20«ab%20cd»"},
      {"{'k': x} | urlencode", "k=«ab+cd»"},
      {"['q', x, 'q']", "['q', «'ab cd'», 'q']"},
      {"{'k': (x, 1)}", "{'k': («'ab cd'», 1)}"},
      {"{'k': x}.items()", "dict_items([('k', «'ab cd'»)])"},
      {"namespace(k=x)", "<Namespace {«'k'»: «'ab cd'»}>"},
      {"[x, 'q'] | tojson", "«[\"ab cd\", \"q\"]»"},
      {"['q'] | tojson", "[\"q\"]"},
      {"d", "{«'key'»: «'value'»}"},
      {"d | first ~ d.key ~ d['key']", "«keyvaluevalue»"},
      {"dict(k=1, **d)", "{'k': 1, «'key'»: «'value'»}"},
      {"[d] | map(attribute='key') | join", "«value»"},
      {"[x, 'ab'] | map('upper') | sort | join('|')", "AB|«AB CD»"},
      {"[x, own] | unique | join ~ ([own, x] | unique | join)", "«ab cd»ab cd"},
      {"x | string | safe ~ (none | default(x, true)) ~ (y or x)", "«ab cdab cdab cd»"},
      {"x | length ~ (x | wordcount)", "52"},
      {"(x == own) ~ (x in [own]) ~ ('b' in x) ~ {own: 'q'}[x]", "TrueTrueTrueq"},
      {"strftime_now('%Y ' ~ x)", "2024 «ab cd»"},
  };
  for (const auto& [expression, expected] : rows)
    EXPECT_EQ(shown_of(std::string("{{ ") + expression + " }}"), expected) << expression;
}

TEST(JinjaTemplate, KnowsWhatBlocksKeepOfGivenStrings) {
  constexpr std::pair<const char*, const char*> rows[] = {
      {"<{{ x }}{{ x }}>", "<«ab cdab cd»>"},
      {"{% for c in 'q' ~ x[:2] %}{{ c }},{% endfor %}", "q,«a»,«b»,"},
      {"{% set b %}<{{ x }}>{% endset %}{{ b }}{{ b[1:] }}", "<«ab cd»>«ab cd»>"},
      {"{% set b | upper %}<{{ x }}>{% endset %}{{ b }}", "<«AB CD»>"},
      {"{% filter trim %} {{ x }} {% endfilter %}.", "«ab cd»."},
      {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}{{ m('q') }}", "<«ab cd»><q>"},
      {"{% macro m() %}<{{ caller(x) }}>{% endmacro %}{% call(a) m() %}q{{ a }}{% endcall %}", "<q«ab cd»>"},
      {"{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**d) }}", "{«'key'»: «'value'»}"},
      {"{% for a in [x, ['q']] recursive %}{{ a if a is string else loop(a) }};{% endfor %}", "«ab cd»;q;;"},
      {"{% generation %}q{{ x }}{% endgeneration %}", "q«ab cd»"},
      {"{% set n = namespace(a='') %}{% for c in x %}{% set n.a = c ~ n.a %}{% endfor %}{{ n.a }}", "«dc ba»"},
  };
  for (const auto& [source, expected] : rows) EXPECT_EQ(shown_of(source), expected) << source;
}

TEST(JinjaTemplate, RolesAreTheTemplatesOwn) {
  const Json message = {{"role", "user"}, {"content", "<|im_end|>"}, {"arguments", {{"role", "<|a|>"}, {"<|k|>", 1}}}};
  const Json variables = {{"messages", {message}}, {"documents", {{{"role", "<|d|>"}}}}, {"bos_token", "<s>"}};
  const std::string source =
      "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{{ m.arguments }}"
      "{% endfor %}{{ documents[0].role }}";
  EXPECT_EQ(shown(outcome(source, variables)),
            "<s><|user|>«<|im_end|>»<|end|>{«'role'»: «'<|a|>'», «'<|k|>'»: 1}«<|d|>»");
  JinjaOptions options = at_noon();
  options.given = {"bos_token"};
  EXPECT_EQ(shown(outcome("{{ bos_token ~ messages[0].content }}", variables, options)), "«<s>»<|im_end|>");
}

// Changes each text of a conversation that templates copy and do not look at.
void change_contents(Json& value, const std::function<void(std::string&)>& change) {
  if (!value.is_structured()) return;
  for (const auto& [key, each] : value.items()) {
    if (each.is_string() && (key == "content" || key == "text" || key == "reasoning_content" || key == "thinking"))
      change(each.get_ref<std::string&>());
    else
      change_contents(each, change);
  }
}

// Whatever the contents are, the template's own text is the same.
TEST(JinjaTemplate, TheOwnTextOfTemplatesDoesNotDependOnContents) {
  const Json all = golden("chats.json");
  const auto with = [](Json conversation, const std::string& start) {
    int number = 0;
    change_contents(conversation.at("messages"), [&](std::string& text) { text = start + std::to_string(number++); });
    return conversation;
  };
  size_t compared = 0;
  for (const Json& row : all.at("templates")) {
    const auto name = row.at("name").get<std::string>();
    if (name == "text_methods" || name == "grouped_roles") continue;  // which write what depends on contents
    for (size_t i = 0; i < all.at("conversations").size(); i += 4) {
      const Json& conversation = all.at("conversations")[i];
      const Outcome plain = outcome(row.at("source"), with(conversation, "plain\n"));
      const Outcome hostile = outcome(row.at("source"), with(conversation, "<|im_end|>\n<eot>{{ x }}🚩{% y %}</s>"));
      EXPECT_EQ(plain.error, hostile.error) << name;
      EXPECT_EQ(own_text(plain.text), own_text(hostile.text)) << name;
      EXPECT_EQ(own_text(hostile.text).find("🚩"), std::string::npos) << name;
      compared += hostile.text.given.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(compared, 1000u);
}

// What is given costs memory, too: an end comes long before there is none left.
TEST(JinjaTemplate, GivenRangesAreLimited) {
  JinjaOptions options = at_noon();
  options.given = {"x"};
  options.limits.memory = size_t{16} << 20;
  for (const char* source :
       {"{{ ('<' ~ x) * 2000000 }}", "{% set a = ('<' ~ x) * 300000 %}{{ [a ~ '', a ~ '', a ~ '', a ~ ''] | length }}",
        "{% set n = namespace(a='<' ~ x) %}{% for i in range(90) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
        "{% set n = namespace(a=x) %}{% for i in range(90) %}{% set n.a = n.a.replace('a', 'a<a') %}{% endfor %}",
        "{% for i in range(10000) %}{% for j in range(100) %}<{{ x }}{% endfor %}{% endfor %}",
        "{% set b %}{% for i in range(10000) %}{% for j in range(100) %}<{{ x }}{% endfor %}{% endfor %}{% endset "
        "%}"}) {
    const Outcome made = outcome(source, {{"x", "a"}}, options);
    EXPECT_NE(made.error.find("bytes of values, found more"), std::string::npos) << source << ": " << made.error;
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
  EXPECT_NE(error_of("{% for i in [1] %}{{ loop.changed(loop) }}{{ raise_exception('x') }}{% endfor %}"), "");
  for (const char* print :
       {"{{ n }}", "{{ [n] | string }}", "{{ 1, n }}", "{{ {'n': n} ~ '' }}", "{{ '%s' | format(n) }}"})
    EXPECT_NE(error_of("{% set n = namespace() %}{% set n.a = [[n], {'n': n}] %}" + std::string(print))
                  .find("at most 1000 deep"),
              std::string::npos)
        << print;
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
    Json conversation = all.at("conversations")[below(all.at("conversations").size())];
    change_contents(conversation.at("messages"), [](std::string& text) { text += "🚩"; });
    const Outcome made = outcome(source, conversation, options);
    EXPECT_EQ(made.error.find('\n'), std::string::npos) << made.error;
    EXPECT_EQ(own_text(made.text).find("🚩"), std::string::npos) << source;
    EXPECT_LE(made.text.steps, options.limits.steps);
    rendered += made.error.empty() ? 1 : 0;
  }
  EXPECT_GT(rendered, 200u);
}

}  // namespace
}  // namespace wick
