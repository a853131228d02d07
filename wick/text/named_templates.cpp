#include "wick/text/named_templates.h"

#include <string>

namespace wick {
namespace {

// Sets `system` to the text of a first message of that role, or none, and `turns` to the messages behind it. Fails
// where these do not come from the user and the assistant in turn.
constexpr const char* kTurns = R"({%- set system = none %}
{%- set turns = messages %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- endif %}
{%- if not turns %}
    {{- raise_exception('a system prompt has its place in the message of a user, found none') }}
{%- endif %}
{%- for turn in turns %}
    {%- set expected = loop.cycle('user', 'assistant') %}
    {%- if turn.role != expected %}
        {{- raise_exception('expected a message of the role ' ~ expected ~ ', found ' ~ turn.role) }}
    {%- endif %}
{%- endfor %}
)";

constexpr const char* kLlama2 = R"({%- for turn in turns %}
    {%- if turn.role == 'assistant' %}
        {{- ' ' ~ turn.content.strip() ~ ' ' ~ eos_token }}
    {%- elif loop.first and system is not none %}
        {{- bos_token ~ '[INST] ' ~ ('<<SYS>>\n' ~ system ~ '\n<</SYS>>\n\n' ~ turn.content).strip() ~ ' [/INST]' }}
    {%- else %}
        {{- bos_token ~ '[INST] ' ~ turn.content.strip() ~ ' [/INST]' }}
    {%- endif %}
{%- endfor %}
)";

constexpr const char* kMistralV1 = R"({{- bos_token }}
{%- for turn in turns %}
    {%- if turn.role == 'assistant' %}
        {{- ' ' ~ turn.content ~ eos_token }}
    {%- elif loop.first and system is not none %}
        {{- ' [INST] ' ~ system ~ '\n\n' ~ turn.content ~ ' [/INST]' }}
    {%- else %}
        {{- ' [INST] ' ~ turn.content ~ ' [/INST]' }}
    {%- endif %}
{%- endfor %}
)";

// The system prompt stands in the last question, if that is the last message.
constexpr const char* kMistralV3 = R"({{- bos_token }}
{%- for turn in turns %}
    {%- if turn.role == 'assistant' %}
        {{- ' ' ~ turn.content | trim ~ eos_token }}
    {%- elif loop.last and system is not none %}
        {{- '[INST] ' ~ system ~ '\n\n' ~ turn.content ~ '[/INST]' }}
    {%- else %}
        {{- '[INST] ' ~ turn.content ~ '[/INST]' }}
    {%- endif %}
{%- endfor %}
)";

constexpr const char* kMistralTekken = R"({{- bos_token }}
{%- for turn in turns %}
    {%- if turn.role == 'assistant' %}
        {{- turn.content ~ eos_token }}
    {%- elif loop.last and system is not none %}
        {{- '[INST]' ~ system ~ '\n\n' ~ turn.content ~ '[/INST]' }}
    {%- else %}
        {{- '[INST]' ~ turn.content ~ '[/INST]' }}
    {%- endif %}
{%- endfor %}
)";

constexpr const char* kLlama3 = R"({{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ message.content | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";

constexpr const char* kChatMl = R"({%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

// Thoughts are shown behind the last question alone, where the last answer has one, possibly empty.
constexpr const char* kQwen3 = R"({%- set last = namespace(question=messages | length) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set last.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\n' }}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > last.question and (loop.last or thought) %}
            {{- '<think>\n' ~ thought.strip('\n') ~ '\n</think>\n\n' }}
            {%- set content = content.lstrip('\n') %}
        {%- endif %}
    {%- endif %}
    {{- content ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
)";

}  // namespace

const std::vector<NamedTemplate>& named_templates() {
  static const auto after_turns = [](const char* rest) { return std::string(kTurns) + rest; };
  static const std::string llama2 = after_turns(kLlama2), v1 = after_turns(kMistralV1), v3 = after_turns(kMistralV3),
                           tekken = after_turns(kMistralTekken);
  static const std::vector<NamedTemplate> all{
      {"llama2", llama2, {}},
      {"llama3", kLlama3, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"mistral-v1", v1, {}},
      {"mistral-v3", v3, {}},
      {"mistral-tekken", tekken, {}},
      {"chatml", kChatMl, {"<|im_start|>", "<|im_end|>"}},
      {"qwen3", kQwen3, {"<|im_start|>", "<|im_end|>"}},
  };
  return all;
}

}  // namespace wick
