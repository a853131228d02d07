"""Chat templates of our own, each with traits of a family's public ones, for chat_templates.py.

Nothing here is a family's text: the traits alone are theirs.
"""

SOURCES = {}


def add(name, source):
    SOURCES[name] = source


# ChatML: Yi, Hermes, exports of LLaMA-Factory
add("chatml_loop", r"""{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + (m['content'] or '') | string + '<|im_end|>' + '\n'}}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
""")
add("default_system", r"""{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- for message in messages -%}
    {%- if loop.first and messages[0].role != 'system' -%}
        {{ '<|im_start|>system\nBe of use.<|im_end|>\n' }}
    {%- endif -%}
    {{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>' ~ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif %}""")
add("llama_factory", r"""{%- set system_message = 'You help.' -%}{%- if messages[0]['role'] == 'system' -%}{%- set loop_messages = messages[1:] -%}{%- set system_message = messages[0]['content'] -%}{%- else -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- if system_message is defined -%}{{ 'System: ' + system_message|string + '<eos>\n' }}{%- endif -%}
{%- for message in loop_messages -%}{%- set content = message['content'] -%}{%- if message['role'] == 'user' -%}{{ 'Human: ' + content|string + '<eos>\nAssistant:' }}{%- elif message['role'] == 'assistant' -%}{{ content|string + '<eos>' + '\n' }}{%- endif -%}{%- endfor -%}
""")
# Llama 2, Mistral v1: turns that have to alternate, [INST], the system prompt inside
add("inst_alternate", r"""{% set offset = 1 if messages[0]['role'] == 'system' else 0 %}{% for turn in messages[offset:] %}{% set is_question = turn['role'] == 'user' %}{% if is_question != (loop.index0 % 2 == 0) %}{{ raise_exception('turn ' ~ loop.index0 ~ ' is out of order') }}{% endif %}{% set words = turn['content'].strip() %}{% if loop.first and offset %}{% set words = '(' + messages[0]['content'] + ')\n' + words %}{% endif %}{{ bos_token + '[Q] ' + words + ' [/Q]' if is_question else ' ' + words + ' ' + eos_token }}{% endfor %}""")
# Mistral v3 and tekken: selectattr, ids of tool calls, tools before the last user message
add("inst_tools", r"""{%- set asked = messages | selectattr("role", "equalto", "user") | list -%}
{%- set seen = namespace() -%}
{%- set seen.turns = 0 -%}
{{- bos_token -}}
{%- for each in messages -%}
    {%- if each["role"] != "tool" and each.tool_calls is not defined %}{% set seen.turns = seen.turns + 1 %}{% endif -%}
    {%- if each["role"] == "user" -%}
        {%- if tools is not none and each == asked[-1] -%}
            {{- "[T][" -}}
            {%- for tool in tools -%}
                {{- "{" -}}
                {%- for k, v in tool.function.items() if k != "description" -%}
                    {{- '"' ~ k ~ '": ' ~ (v | tojson) ~ ("" if loop.last else ", ") -}}
                {%- endfor -%}
                {{- "}" ~ ("]" if loop.last else ", ") -}}
            {%- endfor -%}
            {{- "[/T]" -}}
        {%- endif -%}
        {{- "[Q" ~ seen.turns ~ "]" + each["content"]|string + "[/Q]" -}}
    {%- elif each.tool_calls is defined and each.tool_calls is not none -%}
        {%- for one in each.tool_calls -%}
            {%- if one.id|length != 9 %}{{ raise_exception("an id of " ~ one.id|length ~ " characters") }}{% endif -%}
            {{- (one.function|tojson)[:-1] + ', "id": "' + one.id + '"}' -}}
        {%- endfor -%}
        {{- eos_token -}}
    {%- elif each["role"] in ["assistant", "system", "developer"] -%}
        {{- each["content"]|string|trim + eos_token -}}
    {%- elif each["role"] == "tool" -%}
        {%- set value = each.content.content if each.content.content is defined else each.content -%}
        {{- "[R]" ~ value ~ "/" ~ each.tool_call_id|default("none") ~ "[/R]" -}}
    {%- else -%}
        {{- raise_exception("who is " ~ each.role ~ "?") -}}
    {%- endif -%}
{%- endfor -%}
""")
# Mistral Small 3: a default system prompt with dates, parts of content with images, block set
add("dated_system", r"""{%- set day = strftime_now("%A, %Y-%m-%d") %}
{%- set rules = "It is " + day + "." %}
{%- set others = messages %}
{%- if messages[0]['role'] == 'system' %}
    {%- set rules = messages[0]['content'] if messages[0]['content'] is string else messages[0]['content'][0]['text'] %}
    {%- set others = messages[1:] %}
{%- endif %}
{{- bos_token ~ '[S]' + rules + '[/S]' }}
{%- for one in others %}
    {%- if one['content'] is string %}
        {%- set body %}{{ one['content'] }}{% endset %}
    {%- else %}
        {%- set body %}
            {%- for part in one['content'] or [] %}
                {%- if part['type'] in ['image', 'picture'] %}[P]{% elif part['type'] == 'text' %}{{ part['text'] }}{% else %}{{ raise_exception('a part of type ' + part['type']) }}{% endif %}
            {%- endfor %}
        {%- endset %}
    {%- endif %}
    {{- '[Q]' ~ body ~ '[/Q]' if one['role'] == 'user' else body ~ eos_token }}
{%- endfor %}""")
# Llama 3 and 3.1: content trimmed, date strings, tools in the first user message, JSON with an indent
add("llama3_trim", r"""{% for one in messages %}{% set piece = '<h>' + one['role'] + '</h>\n\n' + one['content'] | trim + '<eot>' %}{% if not loop.index0 %}{% set piece = bos_token + piece %}{% endif %}{{ piece }}{% endfor %}{{ '<h>assistant</h>\n\n' if add_generation_prompt }}""")
add("llama31_tools", r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "1 Feb 2024" %}
{%- endif %}
{%- set intro = "" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set intro = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<h>system</h>\n" ~ date_string ~ "\n" ~ intro }}
{%- if builtin_tools is defined %}
    {{- "\n" ~ builtin_tools | reject('equalto', 'code_interpreter') | join(", ") }}
{%- endif %}
{{- "<eot>" }}
{%- if not tools is none %}
    {%- if messages | length == 0 %}
        {{- raise_exception("nobody asks") }}
    {%- endif %}
    {%- set question = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
    {{- '<h>user</h>\n' -}}
    {%- for each in tools %}
        {{- each | tojson(indent=4) ~ "\n\n" }}
    {%- endfor %}
    {{- question + "<eot>"}}
{%- endif %}
{%- for one in messages %}
    {%- if 'tool_calls' in one %}
        {%- if not one.tool_calls|length == 1 %}
            {{- raise_exception("more calls than one") }}
        {%- endif %}
        {%- set what = one.tool_calls[0].function %}
        {{- '<h>assistant</h>\n' }}
        {%- if builtin_tools is defined and what.name in builtin_tools %}
            {%- for k, v in what.arguments | items %}{{ k + '=' + v|string ~ (';' if not loop.last) }}{% endfor %}
        {%- else %}
            {{- what.name ~ ' ' ~ what.arguments | tojson }}
        {%- endif %}
        {{- "<eot>" if builtin_tools is not defined else "<eom>" }}
    {%- elif one.role in ("tool", "ipython") %}
        {{- "<h>tool</h>\n" ~ (one.content | tojson if one.content is mapping or one.content is iterable else one.content) ~ "<eot>" }}
    {%- else %}
        {{- '<h>' + one['role'] + '</h>\n' + one['content'] | trim + '<eot>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<h>assistant</h>\n' }}
{%- endif %}
""")
# Llama 4: content of parts, nested loops and tests by `is`
add("llama4_parts", r"""{{- bos_token }}
{%- if tools is defined and tools %}
    {{- tools | map(attribute='function') | map(attribute='name') | join(', ') ~ '\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|header|>' + message['role'] + '<|/header|>\n\n' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- elif message['content'] is iterable and message['content'] is not mapping %}
        {%- for content in message['content'] %}
            {%- if content['type'] == 'image' %}{{- '<|image|>' }}
            {%- elif content['type'] == 'text' %}{{- content['text'] | trim }}{% endif %}
        {%- endfor %}
    {%- endif %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}{{ '[' ~ call.function.name ~ '(' }}
            {%- for name, value in (call.function.arguments.items() if call.function.arguments is mapping else {}.items()) -%}
                {{ name }}={{ value | tojson }}{{ ', ' if not loop.last }}
            {%- endfor -%}
            {{ ')]' }}{% endfor %}
    {%- endif %}
    {{- "<|eot|>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\n\n' }}{%- endif %}
""")
# Gemma 1 to 3: roles renamed, the system prompt in front of the first user message, refusals
add("gemma_roles", r"""{{ bos_token }}
{%- set shown = {'assistant': 'model'} -%}
{%- set lead = namespace(text='') -%}
{%- for one in messages -%}
    {%- if loop.first and one.role == 'system' -%}
        {%- set lead.text = (one.content if one.content is string else one.content[0]['text']) ~ '\n\n' -%}
        {%- continue -%}
    {%- endif -%}
    {{ '<turn>' ~ shown.get(one.role, one.role) ~ '\n' ~ lead.text }}
    {%- set lead.text = '' -%}
    {%- if one.content is string -%}
        {{ one.content | trim }}
    {%- elif one.content is iterable -%}
        {%- for part in one.content -%}
            {{ '<image>' if part.type == 'image' else part.text | trim }}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("content of no kind that is known") }}
    {%- endif -%}
    {{ '</turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model\n'}}
{%- endif -%}
""")
# Gemma 4: macros that format a schema recursively, with sorted dicts
add("schema_macros", r"""{%- macro value_of(v) -%}
    {%- if v is string -%}{{ '<q>' ~ v ~ '<q>' }}
    {%- elif v is boolean -%}{{ 'true' if v else 'false' }}
    {%- elif v is mapping -%}{{ '{' }}{%- for key, item in v | dictsort -%}{{ key ~ ':' ~ value_of(item) }}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{ '}' }}
    {%- elif v is sequence -%}[{%- for item in v -%}{{ value_of(item) }}{{ ',' if not loop.last }}{%- endfor -%}]
    {%- else -%}{{ v }}{%- endif -%}
{%- endmacro -%}
{%- macro properties(props, required, depth=0) -%}
    {%- for name, spec in props | dictsort(false, 'key') -%}
        {{- '  ' * depth ~ name ~ ('' if name in required else '?') ~ ': ' ~ (spec.type if spec.type is string else spec.type | join(' or ')) -}}
        {%- if spec.enum is defined %} of {{ value_of(spec.enum) }}{% endif -%}
        {%- if spec.properties is defined and spec.properties is mapping %}
{{ properties(spec.properties, spec.required | default([]), depth + 1) }}
        {%- else %}
{{ '' }}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro -%}
{%- if tools %}{% for tool in tools %}<|tool>{{ tool.function.name }} {{ tool['function']['description'] | default('', true) | upper }}
{{ properties(tool.function.parameters.properties, tool.function.parameters.required | default([])) }}{% endfor %}{% endif -%}
{%- for message in messages -%}
<|turn>{{ message.role }}
{{ value_of(message.content) }}
{%- for call in message.tool_calls or [] %}<|call>{{ call['function']['name'] }}{{ value_of(call['function']['arguments']) }}{% endfor %}
{% endfor %}""")
# Phi 3 and 4: one line, roles by concatenation
add("phi_roles", r"""{% for one in messages %}{% if 'tools' in one and one['tools'] is not none %}{{ '<|' + one['role'] + '|>' + one['tools'] + '<|.|>' }}{% elif one['content'] is string %}{{ '<|' + one['role'] + '|>' + one['content'] + '<|.|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""")
add("phi_crlf", "{% for message in messages %}\r\n{% if message.role == 'user' %}\r\n{{ '<|user|>\\n' + message.content|string }}\r\n{% elif message.role == 'assistant' %}\r\n{{ '<|assistant|>\\n' + message.content|string }}\r\n{% endif %}\r\n{% endfor %}\r\n")
# DeepSeek V3 and R1: a namespace of flags, concatenation in it, thoughts cut off by split
add("deepseek_flags", r"""{% set st = namespace(rules='', fresh=true, open=false, calls=0) %}{%- for one in messages if one['role'] == 'system' %}{% set st.rules = st.rules + ('' if st.fresh else '\n\n') + one['content'] %}{% set st.fresh = false %}{%- endfor %}{{ bos_token }}{{ st.rules }}{%- for one in messages %}{%- if one['role'] == 'user' %}{%- set st.open = false -%}{{'<｜Q｜>' + one['content']|string}}{%- elif one['role'] == 'assistant' and 'tool_calls' in one and one['tool_calls'] is not none %}{%- for each in one['tool_calls'] %}{%- set st.calls = st.calls + 1 -%}{%- if one['content'] is none %}{{'<｜call ' ~ st.calls ~ '｜>' + each['type'] + '｜' + each['function']['name'] + '\n' + each['function']['arguments']|string}}{%- else %}{{'<｜A｜>' + one['content'] + each['function']['name']}}{%- endif %}{%- endfor %}{%- elif one['role'] == 'assistant' %}{% set answer = one['content']|string %}{% if '</think>' in answer %}{% set answer = answer.split('</think>')[-1] %}{% endif %}{{ ('<｜/R｜>' if st.open else '<｜A｜>') + answer + '<｜.｜>'}}{%- set st.open = false -%}{%- elif one['role'] == 'tool' %}{{ ('\n' if st.open else '<｜R｜>') + one['content']|string }}{%- set st.open = true -%}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not st.open %}{{'<｜A｜><think>\n'}}{% endif %}""")
add("deepseek_thinking", r"""{%- if not thinking is defined %}{% set thinking = enable_thinking | default(false) %}{% endif -%}
{%- set ns = namespace(last=-1) -%}
{%- for m in messages %}{% if m.role in ['user', 'developer'] %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
    {%- if m.role == 'assistant' -%}
        {{- ('<think>' ~ m.reasoning_content if m.reasoning_content is defined and m.reasoning_content and loop.index0 > ns.last else '') ~ '</think>' ~ m.content -}}
        {%- for c in (m.tool_calls or []) %}<call name="{{ c.function.name }}">{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson(ensure_ascii=True) }}</call>{% endfor -%}
    {%- else -%}
        {{- '<｜' ~ m.role | capitalize ~ '｜>' ~ (m.content if m.content is string else m.content | tojson) -}}
        {%- if loop.nextitem is undefined or loop.nextitem.role == 'assistant' %}<｜Assistant｜>{{ '<think>' if thinking else '</think>' }}{% endif -%}
    {%- endif -%}
{%- endfor -%}""")
# GLM: a for filter, tags of arguments, an observation run
add("glm_observation", r"""[M]<go>
{%- if tools -%}
<|system|>
{% for each in tools %}
{{ each | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- macro words(body) -%}
    {%- if body is string -%}
        {{- body }}
    {%- elif body is iterable and body is not mapping -%}
        {%- for part in body -%}
            {{- part if part is string else part.text | default('') -}}
        {%- endfor -%}
    {%- else -%}
        {{- body }}
    {%- endif -%}
{%- endmacro -%}
{%- set mark = namespace(last=-1) %}
{%- for one in messages %}
    {%- if one.role == 'user' %}
        {% set mark.last = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for one in messages %}
{%- if one.role in ('user', 'system') -%}<|{{ one.role }}|>
{{ words(one.content) }}
{{- ' quickly' if enable_thinking is defined and not enable_thinking and not words(one.content).endswith(".") else '' -}}
{%- elif one.role == 'assistant' -%}
<|assistant|>
{%- set body = words(one.content) %}
{%- set idea = one.reasoning_content if one.reasoning_content is string else '' %}
{%- if not idea and '</think>' in body %}
    {%- set idea = body.split('</think>')[0].split('<think>')[-1].strip('\n') %}
    {%- set body = body.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{ '\n(' ~ idea.strip() ~ ')' if loop.index0 > mark.last else '\n()' }}
{%- if body.strip() -%}
{{ '\n' + body.strip() }}
{%- endif -%}
{% for each in one.tool_calls or [] %}
{%- if each.function %}
    {%- set each = each.function %}
{%- endif %}
{{ '\n<call>' + each.name }}
{% set given = each.arguments %}
{% if given is mapping %}{% for k, v in given.items() %}
<k>{{ k }}</k>
<v>{{ v if v is string else v | tojson(ensure_ascii=False) }}</v>
{% endfor %}{% endif %}
</call>{% endfor %}
{%- elif one.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != "tool" %}
    {{- '<|seen|>' }}
{%- endif %}
{{- '\n<r>' ~ one.content ~ '</r>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\n()' if enable_thinking is defined and not enable_thinking else '' -}}
{%- endif -%}
""")
# gpt-oss: macros with defaults that write types, channels, builtin tools
add("harmony_types", r"""{#- kwargs: reasoning_effort -#}
{%- macro kind(spec, needed, or_null=false) -%}
    {%- if spec.type == "array" -%}
        {%- set of = kind(spec['items'], needed) if spec['items'] else 'any' -%}
        {{- (of if of|length < 40 else "any") ~ "[]" }}
    {%- elif spec.type is iterable and spec.type is not string and spec.type is not mapping -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name ~ ('' if name in (spec.required or []) else '?') ~ ': ' ~ kind(inner, [], or_null=inner.nullable) ~ (',' if not loop.last) ~ "\n" }}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}{{ {'integer': 'number'}.get(spec.type, spec.type) }}{%- endif -%}
    {{- " | null" if or_null -}}
{%- endmacro -%}
{%- macro listing(title, list) -%}
    {{- "## " + title + "\n" }}
    {%- for each in list %}
        {{- "// " + each.function.description|default("") + "\n" + each.function.name + ": " + kind(each.function.parameters, []) + "\n" }}
    {%- endfor %}
{%- endmacro -%}
{%- set heard = namespace(name=none) -%}
<|go|>system<|.|>{{ strftime_now("%Y-%m-%d") + ", effort " + reasoning_effort|default("middle") }}<|end|>
{%- set has_rules = messages[0].role in ["developer", "system"] -%}
{%- if has_rules or tools %}<|go|>developer<|.|>{{ messages[0].content if has_rules }}{{ listing("tools", tools) if tools }}<|end|>{% endif %}
{%- for one in (messages[1:] if has_rules else messages) -%}
    {%- if one.role == 'assistant' and one.tool_calls -%}
        {%- set act = one.tool_calls[0] %}{% set act = act.function if act.function else act %}
        {{- "<|go|>assistant thinks " ~ one.thinking ~ "<|end|>" if one.thinking }}
        {{- "<|go|>assistant to " ~ act.name ~ "<|.|>" ~ act.arguments|tojson ~ "<|call|>" }}
        {%- set heard.name = act.name %}
    {%- elif one.role == 'assistant' -%}
        {{- "<|go|>assistant<|.|>" ~ one.content ~ ("<|done|>" if loop.last and not add_generation_prompt else "<|end|>") }}
        {%- set heard.name = none %}
    {%- elif one.role == 'tool' -%}
        {%- if heard.name is none %}{{- raise_exception("nothing was called") }}{%- endif %}{{ "<|go|>" ~ heard.name ~ "<|.|>" ~ one.content|tojson ~ "<|end|>" }}
    {%- else -%}<|go|>{{ one.role }}<|.|>{{ one.content }}<|end|>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|go|>assistant{%- endif -%}""")
# Qwen 2.5 and 3: tools as JSON lines, runs of tool answers, thoughts after the last question
add("qwen25_tools", r"""{%- set own = messages[0]['role'] == 'system' %}
{%- if tools or own %}
    {{- '<|im_start|>system\n' ~ (messages[0]['content'] if own else 'Use tools.') }}
    {%- for each in tools or [] %}
        {{- "\n" }}
        {{- each | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- endif %}
{%- for one in messages %}
    {%- if one.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<answer>' ~ one.content ~ '</answer>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- elif one.role == "assistant" and one.tool_calls %}
        {{- '<|im_start|>' + one.role }}
        {%- if one.content %}
            {{- '\n' + one.content }}
        {%- endif %}
        {%- for each in one.tool_calls %}
            {%- set each = each.function if each.function is defined else each %}
            {{- '\n<call>' }}{{ each.name + ' ' + each.arguments | tojson }}{{ '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif not (own and loop.first) %}
        {{- '<|im_start|>' + one.role + '\n' + one.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""")
add("qwen3_thoughts", r"""{%- set find = namespace(done=false, at=messages|length) %}
{%- for one in messages[::-1] %}
    {%- set place = loop.length - loop.index %}
    {%- if not find.done and one.role == "user" and one.content is string and not (one.content.startswith('<tool_response>') or one.content.endswith('.')) %}
        {%- set find.done = true %}
        {%- set find.at = place %}
    {%- endif %}
{%- endfor %}
{%- for one in messages %}
    {%- set said = one.content if one.content is string else '' %}
    {%- set idea = '' %}
    {%- if one.reasoning_content is string %}
        {%- set idea = one.reasoning_content %}
    {%- elif '</think>' in said %}
        {%- set halves = said.split('</think>') %}
        {%- set idea = halves[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set said = halves[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ one.role ~ '\n' }}
    {%- if one.role == "assistant" and loop.index0 > find.at and (loop.last or idea) %}
        {{- '<think>' + idea.strip('\n') + '</think>\n' }}
    {%- endif %}
    {{- said ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' ~ ('<think></think>\n' if enable_thinking is defined and enable_thinking is false else '') }}
{%- endif %}""")
# Qwen 3.5: a macro over parts of content that counts pictures in a namespace
add("qwen35_parts", r"""{%- set pictures = namespace(seen=0) %}
{%- macro shown(body, counts=false, may_see=true) %}
    {%- if body is string %}
        {{- body }}
    {%- elif body is none or body is undefined %}
        {{- '' }}
    {%- elif body is iterable and body is not mapping %}
        {%- for part in body %}
            {%- if 'text' in part %}
                {{- part.text }}
            {%- elif part.type == 'image' %}
                {%- if not may_see %}{{ raise_exception('a picture among the rules') }}{% endif %}
                {%- set pictures.seen = pictures.seen + (1 if counts else 0) %}
                {{- ('No. ' ~ pictures.seen ~ ' ' if add_vision_id) ~ '<|see|>' }}
            {%- else %}
                {{- raise_exception('a part that is nothing') }}
            {%- endif %}
        {%- endfor %}
    {%- else %}
        {{- raise_exception('content that is nothing') }}
    {%- endif %}
{%- endmacro %}
{%- for one in messages %}
    {%- set body = shown(one.content, true, one.role != 'system')|trim %}
    {{- '<|im_start|>' + one.role + '\n' + body }}
    {%- if one.tool_calls and one.tool_calls is iterable and one.tool_calls is not mapping %}
        {%- for each in one.tool_calls %}
            {%- set each = each.function if each.function is defined else each %}
            {{- ('\n\n' if loop.first and body|trim else '\n') ~ '<call ' + each.name + '>' }}
            {%- if each.arguments is mapping %}
                {%- for k, v in each.arguments|items %}
                    {%- set v = v | string if v is string or (v is not mapping and v is not sequence) else v | tojson | safe %}
                    {{- '<' + k + '>' }}{{ v }}{{ '</' + k + '>' }}
                {%- endfor %}
            {%- endif %}
            {{- '</call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}""")
# Command R: documents, a block of notes, roles mapped by a dict
add("command_documents", r"""{{ bos_token }}{%- set names = {'user': '<|USER|>', 'assistant': '<|BOT|>', 'system': '<|SYS|>'} -%}
{%- for message in messages if message.role in names -%}
    {{ names[message.role] ~ (message.content if message.content is string else message.content | string) | trim ~ '<|EOT|>' }}
{%- endfor -%}
{%- if documents %}<results>
{% for document in documents %}
Document: {{ loop.index0 }}
{% for key, value in document.items() %}{{ key | title }}: {{ value|string|truncate(40, true) }}
{% endfor %}
{% endfor %}</results>{% endif %}
{%- if citation_mode is defined %}{{ {'fast': 'cite fast', 'accurate': 'cite well'}.get(citation_mode, 'do not cite') }}{% endif -%}
""")
# Granite: counters, documents with joins, controls
add("granite_documents", r"""{%- set tools_system = 'Tools: ' -%}
{%- set ns = namespace(system='You are Granite-like.', count=0) -%}
{%- if messages[0]['role'] == 'system' %}{%- set ns.system = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{% else %}{%- set loop_messages = messages %}{%- endif %}
{%- if tools %}{% set ns.system = ns.system ~ '\n' ~ tools_system ~ (tools | map(attribute='function.name') | sort | join(', ')) %}{% endif %}
{%- for doc in documents or [] %}{% set ns.system = ns.system ~ '\n[' ~ loop.index ~ '/' ~ loop.length ~ '] ' ~ (doc['title'] ~ ': ' if 'title' in doc else '') ~ doc['text'] %}{% endfor %}
{{- '<|role|>system<|/role|>' ~ ns.system ~ '<|eot|>\n' }}
{%- for message in loop_messages %}
{{- '<|role|>' ~ message['role'] ~ '<|/role|>' ~ message['content'] ~ '<|eot|>\n' }}
{%- if loop.last and add_generation_prompt %}{{- '<|role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}{{- '<|/role|>' }}{%- endif %}
{%- endfor %}""")
# SmolLM 3: modes in the system prompt, replace and nested conditions
add("smollm_modes", r"""{%- set thinks = enable_thinking if enable_thinking is defined else true -%}
{%- if messages[0].role == "system" -%}
  {%- set rules = messages[0].content -%}
  {%- if "/no_think" in rules -%}{%- set thinks = false -%}{%- elif "/think" in rules -%}{%- set thinks = true -%}{%- endif -%}
  {%- set rules = rules.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
<|im_start|>system
{{ strftime_now("%d %B %Y") ~ ", " ~ ("slow" if thinks else "quick") ~ "\n" -}}
{{ rules + "\n" if rules else "No rules." -}}
<|im_end|>
{% for one in messages -%}
  {%- set said = one.content if one.content is string else "" -%}
  {%- if one.role == "assistant" -%}
    {% generation %}
    {%- if not thinks %}{{ "<think></think>" }}{% endif -%}
    {{ said.lstrip("\n") + "<|im_end|>\n" }}
    {%- endgeneration %}
  {%- else -%}{{ "<|im_start|>" + one.role + "\n" + said + "<|im_end|>\n" }}{%- endif -%}
{%- endfor -%}""")
# OLMo: functions of the system message, and of environment turns
add("olmo_functions", r"""{%- set ruled = messages|selectattr('role', 'equalto', 'system')|list|length > 0 -%}{{ '' if ruled else 'No rules' ~ (' and no functions' if not tools) ~ '.\n' }}{%- for one in messages -%}{{ '<|' ~ one['role'] ~ '|>' }}{%- if one.get('content', none) is not none -%}{{ one['content'] }}{%- endif -%}{%- if one['role'] == 'system' and tools is not none and tools is defined -%}{{ '<f>' + (tools | tojson) + '</f>' }}{%- endif -%}{%- for each in one.get('tool_calls', none) or [] -%}{%- if each is mapping and each.get('function', none) is not none -%}{%- set given = each['function']['arguments'] -%}{%- set acc = namespace(all=[]) -%}{%- for pair in (given.items() if given is mapping else [('text', given)]) -%}{%- set acc.all = acc.all + [pair[0] ~ '=' ~ (pair[1] | tojson)] -%}{%- endfor -%}{{ each['function']['name'] + '(' + acc.all | join(', ') + ')' }}{%- endif -%}{%- endfor -%}{{ '\n' if not loop.last else eos_token }}{%- if loop.last and add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}{%- endfor -%}""")
# Nemotron: `break` out of a search, previtem, dictsort of arguments
add("nemotron_search", r"""{%- set found = namespace(index=none) -%}
{%- for message in messages | reverse -%}
{%- if message.role == 'user' %}{% set found.index = loop.revindex0 %}{% break %}{% endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'system' and not loop.first %}{% continue %}{% endif -%}
<SPECIAL_{{ loop.index0 + 10 }}>{{ message.role | title }}{{ ' again' if loop.previtem is defined and loop.previtem.role == message.role }}
{{ message.content }}
{%- if loop.index0 == found.index %}[question]{% endif %}

{% else %}none{% endfor -%}
{{ loop is defined }}""")
# Hermes: the tool prompt by macros and filter blocks
add("hermes_macros", r"""{% macro wrapped(role) %}<|{{ role }}|>{{ caller('> ') }}<|/{{ role }}|>{% endmacro %}
{%- macro python_type(spec) %}
{%- set plain = {"string": "str", "number": "float", "integer": "int"} %}
{%- if plain[spec.type] is defined %}
{{- plain[spec.type] }}
{%- elif spec.type == "array" %}
{{- "list of " + python_type(spec|attr('missing') or spec['items']) }}
{%- elif spec.type is iterable and spec.type is not string %}
{%- for each in spec.type %}{{- python_type({"type": each}) ~ (" or " if not loop.last) }}{%- endfor %}
{%- else %}
{{- "object" }}
{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- filter trim %}
{% for tool in tools or [] %}
def {{ tool.function.name }}(
{%- for name, spec in tool.function.parameters.properties|items %}{{ name }}: {{ python_type(spec) }}{{ ", " if not loop.last }}{% endfor %})
{% endfor %}
{% endfilter %}
{% for message in messages %}
    {%- call(text) wrapped(message.role) %}{{ text }}{{ message.content }}{% endcall %}
{% endfor %}""")
# Alpaca, Vicuna, Zephyr and other older ones
add("alpaca", r"""{% for message in messages %}
{% if message['role'] == 'user' %}
### Instruction:
{{ message['content'] }}

{% elif message['role'] == 'assistant' %}
### Response:
{{ message['content'] }}

{% else %}
{{ message['content'] }}

{% endif %}
{% endfor %}
{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}
### Response:
{% endif %}
""")
add("vicuna", r"""{% if messages and messages[0].role == "system" %}{{ messages[0].content ~ " " }}{% set start = 1 %}{% else %}A chat. {% set start = 0 %}{% endif %}{% for i in range(start, messages | length) %}{% set m = messages[i] %}{{ "USER: " if m.role == "user" else "ASSISTANT: " }}{{ m.content }}{{ " " if m.role == "user" else eos_token }}{% endfor %}""")
add("zephyr", r"""{% for one in messages %}
{% if one['role'] == 'user' %}
{{ '<|q|>\n' + one['content'] + eos_token }}
{% elif one['role'] == 'assistant' %}
{{ '<|a|>\n'  + one['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|a|>' }}
{% endif %}
{% endfor %}""")
# trl's training templates: generation blocks in each of their places
add("generation_plain", r"""{% for message in messages %}{% if message.role == 'assistant' %}<|a|>{% generation %}{{ message.content }}<|e|>{% endgeneration %}{% else %}<|{{ message.role }}|>{{ message.content }}{% endif %}{% endfor %}""")
add("generation_tools", r"""{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}
        {%- if message.content is string %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>' ~ call.function.name ~ ' é ' ~ call.function.arguments | tojson ~ '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content|string + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}""")
add("generation_in_macro", r"""{%- macro answer(message) %}A:{% generation %}{{ message.content }}{% endgeneration %};{% endmacro -%}
{%- set n = 0 -%}
{%- for message in messages %}{{ answer(message) if message.role == 'assistant' else 'Q:' ~ message.content ~ ';' }}{% endfor %}
{%- set kept %}{% generation %}kept{% endgeneration %}{% endset %}|{{ kept }}|
{%- generation %}{% set n = 5 %}outer {% generation %}inner{% endgeneration %}{% endgeneration %} {{ n }}""")
# Other constructs that some public templates have
add("cycle_and_changed", r"""{%- for message in messages %}{{ loop.cycle('odd', 'even') }} {{ loop.changed(message.role) }} {{ loop.revindex }}/{{ loop.length }} {{ loop.depth }}
{% endfor %}{% set next_mark = cycler('a', 'b', 'c') %}{% for m in messages %}{{ next_mark.next() }}{{ next_mark.current }}{% endfor %}
{% set comma = joiner(' | ') %}{% for m in messages if m.role != 'system' %}{{ comma() }}{{ m.role }}{% endfor %}""")
add("grouped_roles", r"""{% for role, group in messages | groupby('role') %}{{ role }}: {{ group | length }}{% for m in group %} <{{ m.content | string | length }}>{% endfor %}
{% endfor %}{% for row in messages | batch(3, {'role': '-'}) %}{{ row | map(attribute='role') | join('+') }}
{% endfor %}{{ messages | map(attribute='role') | unique | list }} {{ messages | map(attribute='role') | first | default('no one') }} {{ (messages | last).role }}""")
add("recursive_parts", r"""{%- for part in messages recursive -%}
<{{ loop.depth }}:{{ part.role or part.type or 'text' }}>{{ loop(part.content) if part.content is iterable and part.content is not string and part.content is not mapping else (part.content or part.text or '') }}
{%- endfor -%}""")
add("raw_and_with", r"""{% raw %}{{ not }} {% run %}{% endraw %}
{% with first = messages[0], count = messages | length %}{{ count }}:{{ first.role }}{% set count = 0 %}{{ count }}{% endwith %}{{ count is defined }}
{#- a comment -#}
    {# another #}
  {%+ if true %} kept {% endif +%}
{% for m in messages -%}
    {{ m.content | string | indent(2) }}
{%- endfor %}

""")
add("argument_lists", r"""{% macro show(a, b='two', *rest) %}{% endmacro %}""".replace(", *rest", "") + r"""{% macro m(a, b='B', c=none) %}{{ a }}-{{ b }}-{{ c }}-{{ varargs }}-{{ kwargs }}{% endmacro %}{% for message in messages %}{{ m(message.role, *[1, 2, 3], **{'x': message.content}) }}
{{ m(b=loop.index, a=message['name'] or 'none') }}
{% endfor %}{{ m.name }} {{ m.arguments }} {{ show() }}""")
add("text_methods", r"""{% for m in messages %}{% set t = m.content | string %}{{ [t.upper(), t.lower(), t.title(), t.capitalize(), t.swapcase()] }}
{{ [t.split(), t.split(' ', 1), t.rsplit(None, 1), t.splitlines(), t.partition('a'), t.find('e'), t.count('a'), t[1:4], t[::-1], t[-3:]] }}
{{ [t.isalpha(), t.isdigit(), t.isspace(), t.startswith(('H', '<')), t.strip(' .!'), t | wordcount, t | length] }}
{{ t | tojson(ensure_ascii=true) }} {{ t | urlencode }} {{ t | e }} {{ '%-5s|%3d' | format(t[:3], loop.index) }} {{ '{:>6}|{!r}'.format(t[:2], t[:1]) }}
{% endfor %}""")
add("tool_json_styles", r"""{% for tool in tools or [] %}{{ tool | tojson(indent=2) }}
{{ tool.function | tojson(separators=(',', ':')) }}
{{ tool | tojson(sort_keys=true) }}
{{ tool }}
{{ tool.function.parameters | string }}
{% endfor %}{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson(indent=1, ensure_ascii=true, sort_keys=true) }}
{% endfor %}{% endfor %}""")
