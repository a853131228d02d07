"""Chat templates of our own, each with traits of a family's public ones, for chat_templates.py.

Nothing here is a family's text: the traits alone are theirs.
"""

SOURCES = {}


def add(name, source):
    SOURCES[name] = source


# ChatML: Yi, Hermes, exports of LLaMA-Factory
add("chatml_loop", r"""{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' + ((m['content'] or '') | string) + '<|im_end|>\n' }}{% endfor %}
{{ '<|im_start|>assistant\n' if add_generation_prompt }}""")
add("default_system", r"""{% set asks = add_generation_prompt is defined and add_generation_prompt %}
{%- for turn in messages -%}
    {%- if loop.first and turn.role != 'system' -%}
        {{ '<|im_start|>system\nBe of use.<|im_end|>\n' }}
    {%- endif -%}
    {{ '<|im_start|>' ~ turn.role ~ '\n' ~ turn.content ~ '<|im_end|>' ~ '\n' }}
{%- endfor -%}
{%- if asks -%}<|im_start|>assistant
{% endif %}""")
add("llama_factory", r"""{%- set rules, rest = (messages[0]['content'], messages[1:]) if messages[0]['role'] == 'system' else ('You help.', messages) -%}
{{ 'Rules: ' + rules|string + '<eos>\n' }}{%- for turn in rest -%}{{ {'user': 'Asked: ' + turn.content|string + '<eos>\nAnswer:', 'assistant': turn.content|string + '<eos>\n'}.get(turn.role, '') }}{%- endfor -%}
""")
# Llama 2, Mistral v1: turns that have to alternate, [INST], the system prompt inside
add("inst_alternate", r"""{% set offset = 1 if messages[0]['role'] == 'system' else 0 %}{% for turn in messages[offset:] %}{% set is_question = turn['role'] == 'user' %}{% if is_question != (loop.index0 % 2 == 0) %}{{ raise_exception('turn ' ~ loop.index0 ~ ' is out of order') }}{% endif %}{% set words = turn['content'].strip() %}{% if loop.first and offset %}{% set words = '(' + messages[0]['content'] + ')\n' + words %}{% endif %}{{ bos_token + '[Q] ' + words + ' [/Q]' if is_question else ' ' + words + ' ' + eos_token }}{% endfor %}""")
# Mistral v3 and tekken: selectattr, ids of tool calls, tools before the last user message
add("inst_tools", r"""{{- bos_token -}}
{%- set asked = (messages | selectattr("role", "equalto", "user") | list)[-1:] -%}
{%- set seen = namespace(turns=0) -%}
{%- for turn in messages -%}
    {%- set calls = turn.tool_calls | default([], true) -%}
    {%- set seen.turns = seen.turns + (0 if calls or turn.role == "tool" else 1) -%}
    {%- if turn.role not in ["user", "assistant", "system", "developer", "tool"] -%}
        {{- raise_exception("who is " ~ turn.role ~ "?") -}}
    {%- elif turn.role == "user" -%}
        {%- for tool in tools or [] if turn in asked -%}
            {{- "[T]" if loop.first -}}
            {%- for k, v in tool.function.items() if v is not string or k == "name" -%}
                {{- k ~ "=" ~ (v | tojson) ~ (";" if loop.last else ",") -}}
            {%- endfor -%}
            {{- "[/T]" if loop.last -}}
        {%- endfor -%}
        {{- "[Q" ~ seen.turns ~ "]" ~ turn.content ~ "[/Q]" -}}
    {%- elif turn.role == "tool" -%}
        {{- "[R]" ~ turn.tool_call_id | default("none") ~ ": " ~ (turn.content.content or turn.content) ~ "[/R]" -}}
    {%- elif not calls -%}
        {{- (turn.content | string).strip() + eos_token -}}
    {%- endif -%}
    {%- for act in calls -%}
        {{- raise_exception("an id of " ~ act.id | length ~ " characters") if act.id | length is ne(9) -}}
        {{- (act.function | tojson)[:-1] ~ "} as " ~ act.id ~ (eos_token if loop.last) -}}
    {%- endfor -%}
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
add("llama3_trim", r"""{% for turn in messages %}{{ bos_token if loop.first }}{{ '<h>' ~ turn.role ~ '</h>\n\n' ~ turn.content | trim ~ '<eot>' }}{% endfor %}{{ '<h>assistant</h>\n\n' if add_generation_prompt }}""")
add("llama31_tools", r"""{{- bos_token ~ "<h>system</h>\n" }}
{%- set starts = 1 if messages[0].role == 'system' else 0 %}
{{- (date_string if date_string is defined else "1 Feb 2024") ~ "\n" ~ (messages[0].content|trim if starts) }}
{%- set messages = messages[starts:] %}
{%- for name in builtin_tools | default([]) | reject('equalto', 'code_interpreter') %}
    {{- "\nbuilt in: " ~ name }}
{%- endfor %}
{{- "<eot>" }}
{%- if tools is not none %}
    {%- if not messages %}{{ raise_exception("nobody asks") }}{% endif %}
    {{- '<h>user</h>\n' ~ messages[0].content|trim }}
    {%- set messages = messages[1:] %}
    {%- for each in tools %}
        {{- "\n" ~ each | tojson(indent=4) }}
    {%- endfor %}
    {{- "<eot>" }}
{%- endif %}
{%- for turn in messages %}
    {%- set shown = 'tool' if turn.role in ("tool", "ipython") else turn.role %}
    {{- '<h>' ~ shown ~ '</h>\n' }}
    {%- if shown == 'tool' %}
        {{- turn.content if turn.content is string else turn.content | tojson }}
    {%- elif 'tool_calls' in turn and turn.tool_calls %}
        {%- if turn.tool_calls | length > 1 %}{{ raise_exception("more calls than one") }}{% endif %}
        {%- set act = turn.tool_calls[0].function %}
        {%- if act.name in (builtin_tools or []) and act.arguments is mapping %}
            {%- for k, v in act.arguments | items %}{{ k ~ '=' ~ v ~ (';' if not loop.last) }}{% endfor %}
        {%- else %}
            {{- act.name ~ ' ' ~ act.arguments | tojson }}
        {%- endif %}
    {%- else %}
        {{- turn.content | trim }}
    {%- endif %}
    {{- "<eom>" if builtin_tools is defined and 'tool_calls' in turn else "<eot>" }}
{%- endfor %}
{{- '<h>assistant</h>\n' if add_generation_prompt }}
""")
# Llama 4: content of parts, nested loops and tests by `is`
add("llama4_parts", r"""{{- bos_token }}
{%- if tools %}
    {{- tools | map(attribute='function') | map(attribute='name') | join(', ') ~ '\n' }}
{%- endif %}
{%- for turn in messages %}
    {{- '<|header|>' ~ turn.role ~ '<|/header|>\n\n' }}
    {%- set pieces = [{'type': 'text', 'text': turn.content}] if turn.content is string else turn.content | default([], true) %}
    {%- for piece in pieces if piece.type in ['text', 'image'] %}
        {{- '<|image|>' if piece.type is eq('image') else piece.text if turn.content is string else piece.text | trim }}
    {%- endfor %}
    {%- for act in turn.tool_calls | default([]) if act.function.name is not none %}
        {{- '[' ~ act.function.name }}(
        {%- if act.function.arguments is mapping %}
            {%- for k in act.function.arguments %}
                {{- k }}={{ act.function.arguments[k] | tojson }}{{ ', ' if not loop.last }}
            {%- endfor %}
        {%- endif -%}
    )]{% endfor %}
    {{- "<|eot|>" }}
{%- endfor %}
{{- '<|header|>assistant<|/header|>\n\n' if add_generation_prompt }}
""")
# Gemma 1 to 3: roles renamed, the system prompt in front of the first user message, refusals
add("gemma_roles", r"""{{ bos_token }}
{%- set shown = {'assistant': 'model'} -%}
{%- set lead = namespace(text='') -%}
{%- for turn in messages -%}
    {%- if loop.first and turn.role == 'system' -%}
        {%- set lead.text = (turn.content if turn.content is string else turn.content[0]['text']) ~ '\n\n' -%}
        {%- continue -%}
    {%- endif -%}
    {{ '<turn>' ~ shown.get(turn.role, turn.role) ~ '\n' ~ lead.text }}
    {%- set lead.text = '' -%}
    {%- for part in ([{'text': turn.content}] if turn.content is string else turn.content) -%}
        {{ '<image>' if part.type is defined and part.type == 'image' else part.text | trim }}
    {%- else -%}
        {{ raise_exception("a turn of nothing") if turn.content is not string }}
    {%- endfor -%}
    {{ '</turn>\n' }}
{%- endfor -%}
{{ '<turn>' ~ shown['assistant'] ~ '\n' if add_generation_prompt }}""")
add("gemma_refuses", r"""{{- bos_token -}}
{%- for turn in messages -%}
    {%- if turn.role not in ['user', 'assistant'] %}{{ raise_exception('no ' ~ turn.role ~ ' here') }}{% endif -%}
    {%- if loop.previtem is defined and loop.previtem.role is sameas turn.role or loop.changed(turn.role) is false %}{{ raise_exception('twice ' ~ turn.role) }}{% endif -%}
    <turn>{{ 'model' if turn.role == 'assistant' else 'user' }}
{{ turn.content | trim }}</turn>
{% endfor %}{{ '<turn>model\n' if add_generation_prompt }}""")
# Gemma 4: macros that format a schema recursively, with sorted dicts
add("schema_macros", r"""{%- macro listed(items, open, close) -%}
    {{ open }}{%- for item in items -%}{{ caller(item) ~ (',' if not loop.last) }}{%- endfor -%}{{ close }}
{%- endmacro -%}
{%- macro value_of(v) -%}
    {%- if v is mapping -%}
        {%- call(pair) listed(v | dictsort, '{', '}') -%}{{ pair[0] ~ ':' ~ value_of(pair[1]) }}{%- endcall -%}
    {%- elif v is sequence and v is not string -%}
        {%- call(item) listed(v, '[', ']') -%}{{ value_of(item) }}{%- endcall -%}
    {%- elif v is boolean -%}{{ v | string | lower }}
    {%- else -%}{{ '<q>' ~ v ~ '<q>' if v is string else v }}{%- endif -%}
{%- endmacro -%}
{%- macro properties(all, required, depth=0) -%}
    {%- for name, spec in all | dictsort(false, 'key') -%}
        {{- '  ' * depth ~ name ~ ('' if name in required else '?') ~ ': ' ~ (spec.type if spec.type is string else spec.type | join(' or ')) -}}
        {{- ' of ' ~ value_of(spec.enum) if spec.enum }}
{{ properties(spec.properties or {}, spec.required | default([]), depth + 1) }}
    {%- endfor -%}
{%- endmacro -%}
{%- for tool in tools or [] -%}
<|tool>{{ tool.function.name }} {{ tool['function']['description'] | default('', true) | upper }}
{{ properties(tool.function.parameters.properties, tool.function.parameters.required | default([])) }}
{%- endfor -%}
{%- for turn in messages -%}
<|turn>{{ turn.role }}
{{ value_of(turn.content) }}
{%- for act in turn.tool_calls or [] %}<|call>{{ act['function']['name'] }}{{ value_of(act['function']['arguments']) }}{% endfor %}
{% endfor %}{{ '<|turn>assistant\n' if add_generation_prompt }}""")
# Phi 3 and 4: one line, roles by concatenation
add("phi_roles", r"""{% for turn in messages %}{% if turn.content is string %}{{ '<|' ~ turn.role ~ '|>' ~ turn.content ~ (turn.tools if turn.tools is defined) ~ '<|.|>' }}{% endif %}{% endfor %}{{ '<|assistant|>' if add_generation_prompt else eos_token }}""")
add("phi_crlf", "{% for turn in messages %}\r\n{% set mark = {'user': '<|user|>', 'assistant': '<|assistant|>'}[turn.role] %}\r\n{% if mark %}\r\n{{ mark ~ '\\n' ~ turn.content|string }}\r\n{% endif %}\r\n{% endfor %}\r\n{{ '<|assistant|>\\n' if add_generation_prompt }}\r\n")
# DeepSeek V3 and R1: a namespace of flags, concatenation in it, thoughts cut off by split
add("deepseek_flags", r"""{% set st = namespace(rules=[], heard=false, calls=0) %}{% for turn in messages if turn.role == 'system' %}{% set st.rules = st.rules + [turn.content] %}{% endfor %}{{ bos_token ~ st.rules | join('\n\n') }}{% for turn in messages if turn.role in ['user', 'assistant', 'tool'] %}{% if turn.role == 'tool' %}{{ ('\n' if st.heard else '<｜R｜>') ~ turn.content }}{% elif turn.role == 'user' %}{{ '<｜Q｜>' ~ turn.content }}{% else %}{{ '' if st.heard else '<｜A｜>' }}{% if turn.tool_calls %}{% for act in turn.tool_calls %}{% set st.calls = st.calls + 1 %}{{ act.type ~ ' ' ~ st.calls ~ '｜' + act.function.name ~ '\n' ~ act.function.arguments | string }}{% endfor %}{% else %}{{ (turn.content | string).split('</think>') | last + '<｜.｜>' }}{% endif %}{% endif %}{% set st.heard = turn.role == 'tool' %}{% endfor %}{% if add_generation_prompt and not st.heard %}{{ '<｜A｜><think>\n' }}{% endif %}""")
add("deepseek_thinking", r"""{%- set thinks = thinking if thinking is defined else enable_thinking | default(false) -%}
{%- set ns = namespace(last=-1) -%}
{%- for m in messages if m.role in ['user', 'developer'] %}{% set ns.last = messages.index(m) %}{% endfor -%}
{%- for m in messages -%}
    {%- if m.role == 'assistant' -%}
        {{- ('<think>' ~ m.reasoning_content if m.reasoning_content and loop.index0 > ns.last) ~ '</think>' ~ m.content -}}
        {%- for c in (m.tool_calls or []) %}<call name="{{ c.function.name }}">{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson(ensure_ascii=True) }}</call>{% endfor -%}
    {%- else -%}
        {{- '<｜' ~ m.role | capitalize ~ '｜>' ~ (m.content if m.content is string else m.content | tojson) -}}
        {%- if loop.nextitem is undefined or loop.nextitem.role == 'assistant' %}<｜Assistant｜>{{ '<think>' if thinks else '</think>' }}{% endif -%}
    {%- endif -%}
{%- endfor -%}""")
# GLM: a for filter, tags of arguments, an observation run
add("glm_observation", r"""[M]<go>
{%- macro words(body) -%}
    {%- for piece in ([body] if body is string else body or []) -%}
        {{- piece if piece is string else piece.get('text', '') -}}
    {%- endfor -%}
{%- endmacro -%}
{% if tools %}

<|system|>
{%- for each in tools %}
    {{ each | tojson(ensure_ascii=False) }}
{%- endfor %}
{% endif -%}
{%- set asked = namespace(at=-1) %}
{%- for turn in messages | selectattr('role', 'eq', 'user') %}
    {%- set asked.at = messages.index(turn) %}
{% endfor %}
{% for turn in messages %}

{%- set body = words(turn.content) %}
{%- if turn.role == 'tool' %}
  {{- '<|seen|>' if loop.changed('tool', turn.role) or loop.previtem.role != 'tool' }}
  <r>{{ body }}</r>
{%- elif turn.role != 'assistant' %}
<|{{ turn.role }}|>
{{ body }}
    {{- ' (quickly)' if enable_thinking is defined and not enable_thinking and body and body[-1] != '.' }}
{%- else %}
<|assistant|>
{%- set idea = turn.reasoning_content | default('', true) %}
{%- set cut = body.rfind('</think>') %}
{%- if cut >= 0 %}
    {%- set idea = idea or body[:cut] | replace('<think>', '') %}
    {%- set body = body[cut + 8:] %}
{%- endif %}
(
{%- if loop.index0 > asked.at %}{{ idea | trim }}{% endif -%}
)
{%- for line in body.strip().splitlines() %}
{{ line }}
{%- endfor %}
{% for act in turn.tool_calls or [] %}
{% set act = act.function or act %}
<call>{{ act.name }}
{% if act.arguments is mapping %}
{% for k, v in act.arguments.items() %}
<k>{{ k }}</k>
<v>{{ v if v is string else v | tojson(ensure_ascii=False) }}</v>
{% endfor %}
{% endif %}
</call>
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|assistant|>
{%- if enable_thinking is defined and not enable_thinking %}
()
{% endif %}
{%- endif %}
""")
# gpt-oss: macros with defaults that write types, channels, builtin tools
add("harmony_types", r"""{#- takes reasoning_effort -#}
{%- macro kind(spec, inside=true, or_null=false) -%}
    {%- if spec.enum is defined -%}
        {{- spec.enum | map('tojson') | join(" | ") }}
    {%- elif spec.type is not string -%}
        {{- (spec.type or ['any']) | join(" | ") }}
    {%- elif spec.type == "array" -%}
        {%- set each = kind(spec['items'], or_null=false) if spec['items'] is defined else 'any' -%}
        {{- "any[]" if each|length >= 40 else each ~ "[]" }}
    {%- elif spec.properties is defined -%}
        {{- "{" ~ (" " if inside else "\n") }}
        {%- for name in spec.properties -%}
            {%- set inner = spec.properties[name] -%}
            {{- name ~ ('?' if name not in spec.required | default([])) ~ ': ' ~ kind(inner, or_null=inner.nullable | default(false)) ~ ('; ' if inside else ';\n') }}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}{{ {'integer': 'number'}.get(spec.type, spec.type) }}{%- endif -%}
    {{- " | null" if or_null -}}
{%- endmacro -%}
{%- macro listing(title, list) -%}
    {{- "# " + title }}
    {%- for each in list %}
        {{- "\n" ~ each.function.name ~ "(" ~ kind(each.function.parameters, inside=false) ~ ")" }}
        {{- " -- " ~ each.function.description if each.function.description }}
    {%- endfor %}
{%- endmacro -%}
{%- set heard = namespace(name=none) -%}
<|go|>system<|.|>{{ strftime_now("%Y-%m-%d") + ", effort " + reasoning_effort|default("middle") }}<|end|>
{%- set ruled = messages[0].role in ["developer", "system"] -%}
{%- if ruled or tools %}<|go|>developer<|.|>{{ messages[0].content if ruled }}{{ listing("tools", tools) if tools }}<|end|>{% endif %}
{%- for turn in messages[1 if ruled else 0:] -%}
    {%- if turn.role == 'tool' -%}
        {{- raise_exception("nothing was called") if heard.name is none }}{{ "<|go|>" ~ heard.name ~ "<|.|>" ~ turn.content|tojson ~ "<|end|>" }}
    {%- elif turn.role == 'assistant' -%}
        {%- set heard.name = none %}
        {%- for act in (turn.tool_calls or [])[:1] -%}
            {%- set heard.name = (act.function or act).name %}
            {{- ("<|go|>assistant thinks " ~ turn.thinking ~ "<|end|>" if turn.thinking) ~ "<|go|>assistant to " ~ heard.name ~ "<|.|>" ~ act.function.arguments|tojson ~ "<|call|>" }}
        {%- else -%}
            {{- "<|go|>assistant<|.|>" ~ turn.content ~ ("<|done|>" if loop.last and not add_generation_prompt else "<|end|>") }}
        {%- endfor -%}
    {%- else -%}<|go|>{{ turn.role }}<|.|>{{ turn.content }}<|end|>{%- endif -%}
{%- endfor -%}
{{- "<|go|>assistant" if add_generation_prompt -}}""")
add("harmony_channels", r"""{%- for turn in messages %}
{%- set is_new = messages[loop.index:] | rejectattr("role", "in", ["assistant", "tool"]) | list | length == 0 %}
{%- if turn.role == "assistant" %}
{%- if turn.thinking and is_new %}{{ "<|go|>assistant<|way|>thought<|.|>" ~ turn.thinking ~ "<|end|>" }}{% endif %}
{{- "<|go|>assistant<|way|>said<|.|>" ~ (turn.content or "") }}
{%- for act in turn.tool_calls or [] %}{{ "[" ~ act.function.name ~ "]" }}{% endfor %}
{{- "<|done|>" if loop.last else "<|end|>" }}
{%- else %}
{{- "<|go|>" ~ turn.role ~ "<|.|>" ~ turn.content ~ "<|end|>" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|go|>assistant{% endif %}""")
# Qwen 2.5 and 3: tools as JSON lines, runs of tool answers, thoughts after the last question
add("qwen25_tools", r"""{%- set starts = 1 if messages[0].role == 'system' else 0 %}
{%- if tools or starts %}
    {{- '<|im_start|>system\n' ~ (messages[0].content if starts else 'Use tools.') }}
    {%- for each in tools or [] %}{{ "\n" ~ each | tojson }}{% endfor %}
    {{- "<|im_end|>\n" }}
{%- endif %}
{%- for turn in messages[starts:] %}
    {%- set before = messages[starts + loop.index0 - 1].role if not loop.first else '' %}
    {%- set after = messages[starts + loop.index].role if not loop.last else '' %}
    {%- if turn.role != "tool" %}
        {{- '<|im_start|>' ~ turn.role ~ ('\n' + turn.content if turn.content or not turn.tool_calls) }}
        {%- for act in turn.tool_calls or [] %}
            {%- set act = act.function if 'function' in act else act %}
            {{- '\n<call>' ~ act.name }} {{ act.arguments | tojson }}{{ '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>user' if before != turn.role }}
        {{- '\n<answer>' ~ turn.content ~ '</answer>' }}
        {{- '<|im_end|>\n' if after != turn.role }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\n' if add_generation_prompt }}
""")
add("qwen3_thoughts", r"""{%- set asked = namespace(back=none) %}
{%- for turn in messages[::-1] if turn.role == "user" and turn.content is string and '<tool_response>' not in turn.content[:15] %}
    {%- set asked.back = turn if asked.back is none else asked.back %}
{%- endfor %}
{%- set state = namespace(is_new=asked.back is none) %}
{%- for turn in messages %}
    {%- set said = turn.content | default('', true) | string %}
    {%- set idea = turn.reasoning_content | default('', true) %}
    {%- if not idea %}
        {%- set head, mark, tail = said.rpartition('</think>') %}
        {%- set idea = head.partition('<think>')[2] %}
        {%- set said = tail.lstrip('\n') if mark else said %}
    {%- endif %}
    {{- '<|im_start|>' ~ turn.role ~ '\n' }}
    {%- if turn.role == "assistant" and state.is_new and (loop.last or idea) %}
        {{- '<think>' ~ idea.strip('\n') ~ '</think>\n' }}
    {%- endif %}
    {{- said ~ '<|im_end|>\n' }}
    {%- set state.is_new = state.is_new or turn is sameas asked.back %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' ~ ('<think></think>\n' if not enable_thinking | default(true)) }}
{%- endif %}""")
add("opened_thought", r"""{%- for turn in messages %}
    {%- set parts = (turn.content or '').split('</think>') %}
    {{- '<|im_start|>' ~ turn.role ~ '\n' }}
    {%- if turn.role == 'assistant' and turn.reasoning and loop.last %}
        {{- '<think>\n' ~ turn.reasoning.strip() ~ '\n</think>\n' }}
    {%- endif %}
    {{- parts[-1].strip() ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %}""")
# Qwen 3.5: a macro over parts of content that counts pictures in a namespace
add("qwen35_parts", r"""{%- set pictures = namespace(seen=0) %}
{%- macro shown(body, counts=false, may_see=true) %}
    {%- if body is mapping or body is number %}
        {{- raise_exception('content of no known kind') }}
    {%- endif %}
    {%- for part in ([{'text': body}] if body is string else body or []) %}
        {%- if part.text is defined %}
            {{- part.text }}
        {%- elif part.type != 'image' or not may_see %}
            {{- raise_exception('no place for ' ~ part.type) }}
        {%- else %}
            {%- set pictures.seen = pictures.seen + counts | int %}
            {%- if add_vision_id %}No. {{ pictures.seen }} {% endif %}
            {{- '<|see|>' }}
        {%- endif %}
    {%- endfor %}
{%- endmacro %}
{%- for turn in messages %}
    {%- set body = shown(turn.content, true, may_see=turn.role != 'system') | trim %}
    {{- '<|im_start|>' ~ turn.role ~ '\n' ~ body }}
    {%- for act in turn.tool_calls if turn.tool_calls is sequence %}
        {%- set act = act.function | default(act) %}
        {{- '\n' * (2 if loop.first and body else 1) ~ '<call ' ~ act.name ~ '>' }}
        {%- for k, v in (act.arguments if act.arguments is mapping else {}) | items %}
            {{- '<' ~ k ~ '>' ~ (v | tojson | safe if v is mapping or v is sequence and v is not string else v | string) ~ '</' ~ k ~ '>' }}
        {%- endfor %}
        {{- '</call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' if add_generation_prompt }}""")
# Command R: documents, a block of notes, roles mapped by a dict
add("command_documents", r"""{{ bos_token }}{%- set names = {'user': '<|USER|>', 'assistant': '<|BOT|>', 'system': '<|SYS|>'} -%}
{%- for turn in messages if turn.role in names -%}
    {{ names[turn.role] ~ (turn.content | string) | trim ~ '<|EOT|>' }}
{%- endfor -%}
{%- for paper in documents or [] %}
{% if loop.first %}[papers]
{% endif %}
{{ loop.index }}.
{%- for field in paper | dictsort %} {{ field[0] | title }}={{ field[1] | string | truncate(40, true) }}{% endfor %}

{%- endfor %}
{%- if citation_mode is defined %}{{ {'fast': 'cite fast', 'accurate': 'cite well'}.get(citation_mode, 'do not cite') }}{% endif -%}
{{ names.assistant if add_generation_prompt }}""")
# Granite: counters, documents with joins, controls
add("granite_documents", r"""{%- set all = namespace(rules=['You are made of stone.'], count=0) -%}
{%- set ruled = messages[0].role == 'system' -%}
{%- if ruled %}{% set all.rules = [messages[0].content] %}{% endif %}
{%- if tools %}{% set all.rules = all.rules + ['Tools: ' ~ tools | map(attribute='function.name') | sort | join(', ')] %}{% endif %}
{%- for paper in documents or [] %}{% set all.rules = all.rules + ['[' ~ loop.index ~ '/' ~ loop.length ~ '] ' ~ (paper['title'] ~ ': ' if 'title' in paper else '') ~ paper['text']] %}{% endfor %}
{%- macro turn(role, text, more='') %}{{ '<|role|>' ~ role ~ more ~ '<|/role|>' ~ text ~ '<|eot|>\n' }}{% endmacro %}
{{- turn('system', all.rules | join('\n')) }}
{%- for one in messages %}{{ turn(one.role, one.content) if not (loop.first and ruled) }}{% endfor %}
{%- if add_generation_prompt %}<|role|>assistant{{ ' ' ~ controls | tojson if controls }}<|/role|>{% endif %}""")
# SmolLM 3: modes in the system prompt, replace and nested conditions
add("smollm_modes", r"""{%- set ns = namespace(rules="", thinks=enable_thinking | default(true)) -%}
{%- for turn in messages[:1] if turn.role == "system" -%}
  {%- set ns.thinks = ns.thinks and "/no_think" not in turn.content -%}
  {%- set ns.rules = turn.content | replace("/no_think", "") -%}
{%- endfor -%}
<|im_start|>system
{{ strftime_now("%d %B %Y") ~ ", " ~ ("slow" if ns.thinks else "quick") ~ "\n" -}}
{{ ns.rules.strip() | replace("\n\n", "\n") or "No rules." -}}
<|im_end|>
{% for turn in messages -%}
  {%- set said = turn.content if turn.content is string else "" -%}
  {%- if turn.role == "assistant" -%}
    <|im_start|>assistant
{% generation %}
    {%- if not ns.thinks %}{{ "<think></think>" }}{% endif -%}
    {{ said.lstrip("\n") + "<|im_end|>" }}
    {%- endgeneration %}
    {{- "\n" }}
  {%- else -%}{{ "<|im_start|>" + turn.role + "\n" + said + "<|im_end|>\n" }}{%- endif -%}
{%- endfor -%}
{{- "<|im_start|>assistant\n" if add_generation_prompt -}}""")
# OLMo: functions of the system message, and of environment turns
add("olmo_functions", r"""{%- set rules = messages | selectattr('role', 'eq', 'system') | list -%}{{ '' if rules else 'No rules' ~ (' and no functions' if not tools) ~ '.\n' }}{%- for turn in messages -%}{{ '<|' ~ turn['role'] ~ '|>' ~ (turn.get('content') or '') }}{%- if tools and turn in rules -%}<f>{{ tools | tojson }}</f>{%- endif -%}{%- for act in turn.get('tool_calls', []) -%}{%- set given = act.get('function', {}).get('arguments', '') -%}{%- set acc = namespace(all=[]) -%}{%- for pair in (given.items() if given is mapping else [('text', given)]) -%}{%- set acc.all = acc.all + [pair[0] ~ '=' ~ (pair[1] | tojson)] -%}{%- endfor -%}{{ act['function']['name'] + '(' + acc.all | join(', ') + ')' }}{%- endfor -%}{{ eos_token if loop.last and not add_generation_prompt else '\n' }}{%- endfor -%}{{ '<|assistant|>' if add_generation_prompt }}""")
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
{%- macro typed(spec) %}
{%- if spec.type is string %}
{{- 'list of ' ~ typed(spec|attr('missing') or spec['items']) if spec.type == 'array' else {'string': 'text', 'integer': 'whole number'}.get(spec.type, spec.type) }}
{%- else %}
{%- for each in spec.type or ['anything'] %}{{ typed({'type': each}) }}{% if not loop.last %} or {% endif %}{% endfor %}
{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- filter trim %}
{% for tool in tools or [] %}
use {{ tool.function.name }} with
{%- for name, spec in tool.function.parameters.properties|items %} {{ name }}: {{ typed(spec) }}{{ "," if not loop.last }}{% endfor %}
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
add("zephyr", r"""{% for turn in messages %}
{% set mark = '<|q|>' if turn.role == 'user' else '<|a|>' %}
{% if turn.role in ('user', 'assistant') %}
{{ mark ~ '\n' + turn.content ~ eos_token }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|a|>
{% endif %}
""")
# trl's training templates: generation blocks in each of their places
add("generation_plain", r"""{% for message in messages %}{% if message.role == 'assistant' %}<|a|>{% generation %}{{ message.content }}<|e|>{% endgeneration %}{% else %}<|{{ message.role }}|>{{ message.content }}{% endif %}{% endfor %}{{ "<|a|>" if add_generation_prompt }}""")
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
add("generation_thoughts", r"""{%- set last = namespace(user=0) -%}
{%- for turn in messages %}{% if turn.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor -%}
{%- for turn in messages -%}
<|im_start|>{{ turn.role }}
{% if turn.role == 'assistant' -%}
{% generation -%}
{% if turn.reasoning_content and loop.index0 > last.user %}({{ turn.reasoning_content | trim }}) {% endif %}
{{- turn.content if turn.content is string }}<|im_end|>
{%- endgeneration %}
{{- '\n' }}
{%- else -%}
{{ turn.content ~ '<|im_end|>' }}
{% endif %}
{%- endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""")
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
