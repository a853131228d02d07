"""Conversations through transformers' apply_chat_template.

The templates are ours: they hold what the families' own say of the roles system, user and assistant, without tools.

    python tools/golden/llm_chat.py      writes tests/golden/tokenizers/chat.json, after llm_tokenizers.py
"""

import itertools
import json
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from transformers import PreTrainedTokenizerFast

import llm_lines

SYSTEM_APART = ("{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
                "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}")

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}\
{% else %}{% set turns = messages %}{% set system = false %}{% endif %}{% for message in turns %}\
{% if loop.first and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

MISTRAL_OLDEST = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}\
{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}"""

MISTRAL_V1 = SYSTEM_APART + """{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] + eos_token}}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_V3 = SYSTEM_APART + """{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_TEKKEN = MISTRAL_V3.replace('"[INST] "', '"[INST]"').replace('" " + message["content"]|trim', 'message["content"]')

LLAMA3 = """{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' \
+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}\
{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

SMOLLM = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are " \
         "SmolLM, a helpful AI assistant<|im_end|>\\n' }}{% endif %}" + CHATML.removeprefix("{% for message in messages %}")

QWEN25 = """{%- if tools %}{{- '<|im_start|>system\\n' }}{{- 'You are Qwen.' }}{{- '<|im_end|>\\n' }}{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}{%- if message.role != "system" or not loop.first %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

QWEN3 = """{%- set ns = namespace(last_query_index=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == "user" %}
        {%- set ns.searching = false %}{%- set ns.last_query_index = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role != "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- else %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# name -> (template, tokenizer, whether turns alternate, whether there may be a system prompt)
TEMPLATES = {
    "llama2": (LLAMA2, "llama2", True, True),
    "mistral_oldest": (MISTRAL_OLDEST, "llama2", True, False),
    "mistral_v1": (MISTRAL_V1, "llama2", True, True),
    "mistral_v3": (MISTRAL_V3, "mistral3", True, True),
    "mistral_tekken": (MISTRAL_TEKKEN, "tekken", True, True),
    "llama3": (LLAMA3, "llama3", False, True),
    "llama31": (LLAMA31, "llama3", False, True),
    "chatml": (CHATML, "qwen3", False, True),
    "smollm": (SMOLLM, "smollm", False, True),
    "qwen25": (QWEN25, "qwen3", False, True),
    "qwen3": (QWEN3, "qwen3", False, True),
}

SYSTEM = {"role": "system", "content": "You are a pirate.\nAnswer briefly. "}
USER = [{"role": "user", "content": c} for c in (
    "Hello world!", "  What is the capital of France? 👍🏽\n", "\nif x:\n\treturn 'été'", "2024 + 1 = ?")]
REPLY = [{"role": "assistant", "content": c} for c in (
    "Paris. Sure!", "<think>\nThe user asks.\n</think>\n\nHere is a story.", "I'm 42 ", "日本語です。")]

CONVERSATIONS = [
    USER[:1], [SYSTEM, USER[0]], [USER[1], REPLY[0], USER[2]], [SYSTEM, USER[2], REPLY[1], USER[1]],
    [USER[0], REPLY[1], USER[3], REPLY[2], USER[1]], [USER[0], REPLY[3]], [SYSTEM, USER[3], REPLY[1]],
    [USER[0], REPLY[0], USER[1], REPLY[2]],
]
FREE = [[USER[0], USER[1]], [USER[0], REPLY[0], SYSTEM, USER[1]], [REPLY[0], USER[0]], [SYSTEM, REPLY[2]],
        [USER[0], REPLY[1], REPLY[0]], [USER[0], REPLY[0], REPLY[1], REPLY[2]]]


def cases(name):
    template, family, alternates, has_system = TEMPLATES[name]
    config = json.loads((llm_lines.FOLDER / family / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(llm_lines.FOLDER / family / "tokenizer.json"), chat_template=template,
        bos_token=config.get("bos_token"), eos_token=config["eos_token"] if isinstance(config["eos_token"], str) else "</s>")
    options = [{"add_generation_prompt": p} for p in (True, False)]
    if name == "qwen3":
        options.append({"add_generation_prompt": True, "enable_thinking": False})
    if name == "llama31":
        options.append({"add_generation_prompt": True, "date_string": "01 Feb 2025"})
    for messages, how in itertools.product(CONVERSATIONS + ([] if alternates else FREE), options):
        if not has_system and messages[0]["role"] == "system":
            continue
        text = tokenizer.apply_chat_template(messages, tokenize=False, **how)
        ids = tokenizer.apply_chat_template(messages, tokenize=True, **how)
        yield {"messages": [[m["role"], m["content"]] for m in messages], "options": how, "text": text, "ids": ids}


def main():
    golden = [{"name": name, "tokenizer": TEMPLATES[name][1], "template": TEMPLATES[name][0], "cases": list(cases(name))}
              for name in TEMPLATES]
    text = json.dumps(golden, ensure_ascii=True, separators=(",", ":"))
    (llm_lines.FOLDER / "chat.json").write_text(text + "\n", encoding="utf-8")
    print(f"chat.json  {len(golden)} templates, {sum(len(g['cases']) for g in golden)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
