"""Chat templates as transformers renders them.

cases.json      [[template, text], …]: small templates (chat_template_cases.py) on the same variables; the text is null
                where transformers fails. `spans` of generation blocks stand behind the text where there are any.
chats.json      conversations (the variables of a render, as transformers passes them on), and for each template of
                chat_template_sources.py a hash of each conversation's text and spans, and some texts whole.

A hash is 32-bit FNV-1a of the text and then of ",START-END" for each span, in bytes; of "failed" where it fails.

    python tools/golden/chat_templates.py      writes tests/golden/chat_templates/
"""

import datetime
import json
import os
import random

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from transformers.utils import chat_template_utils as utils

import golden
from chat_template_cases import EXPRESSIONS, TEMPLATES, VARIABLES
from chat_template_sources import SOURCES

FOLDER = golden.ROOT / "chat_templates"


class Now(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 13, 4, 5)


utils.datetime = Now


def byte_spans(text, spans):
    return [[len(text[:start].encode()), len(text[:end].encode())] for start, end in spans]


def render(template, variables):
    """The text and the spans in bytes, or none where transformers fails."""
    try:
        rest = dict(variables)
        texts, spans = utils.render_jinja_template(
            [rest.pop("messages", [])], chat_template=template, return_assistant_tokens_mask=True, **rest)
        texts[0].encode()
    except Exception:  # any failure of a template
        return None
    return texts[0], byte_spans(texts[0], spans[0])


def fnv1a(data):
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def hash_of(result):
    if result is None:
        return fnv1a(b"failed")
    text, spans = result
    return fnv1a((text + "".join(f",{a}-{b}" for a, b in spans)).encode())


TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Tells the weather of a <place> & time.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Where, e.g. \"Zürich\""},
        "days": {"type": "integer"}, "unit": {"type": "string", "enum": ["c", "f"]},
        "points": {"type": "array", "items": {"type": "object", "properties": {"lat": {"type": "number"}}}, "nullable": True}},
        "required": ["place"]}}}
TOOL_2 = {"type": "function", "function": {"name": "now", "description": "", "parameters": {
    "type": "object", "properties": {"zone": {"type": ["string", "null"]}}}}}
TEXTS = ["Hello!", "", "  spaced out \n", "été 日本語 😀 \u2028", "line one\nline two\n\nline four", "a <b> & \"c\" 'd' {{ e }} {% f %}",
         "code:\n\tif x:\n\t\treturn {'k': [1, 2]}", "/no_think please", "<tool_response>x</tool_response>", "x" * 70, "1", "Ein Wort ist genug."]
THOUGHTS = ["<think>\nhm\n</think>\n\nFine.", "<think></think>Ok", "a</think>b", "Yes.\n", "Certainly, here it is: 1, 2, 3"]


def content(rng):
    if rng.random() < 0.12:
        parts = [{"type": "text", "text": rng.choice(TEXTS)}, {"type": "image"}, {"type": "text", "text": rng.choice(TEXTS)}]
        return parts[:rng.randint(1, 3)]
    return rng.choice(TEXTS)


def tool_turn(rng):
    calls = []
    for i in range(rng.choice((1, 1, 2))):
        arguments = {"place": rng.choice(TEXTS), "days": rng.randint(0, 9), "deep": {"b": [1.5, None], "a": True}}
        function = {"name": rng.choice(("get_weather", "now")), "arguments": arguments}
        if rng.random() < 0.3:
            function["arguments"] = json.dumps(arguments)
        calls.append({"id": f"call{i}{rng.randint(1000, 9999)}"[:9], "type": "function", "function": function})
    message = {"role": "assistant", "content": rng.choice((None, "", "Let me look.")), "tool_calls": calls}
    if rng.random() < 0.3:
        message["reasoning_content"] = "I should ask a tool."
    answers = [{"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"],
                "content": rng.choice(("21.5", '{"t": 3}', rng.choice(TEXTS)))} for c in calls]
    return [message, *answers]


def messages(rng):
    made = []
    if rng.random() < 0.5:
        made.append({"role": rng.choice(("system", "system", "developer")), "content": content(rng)})
    for _ in range(rng.randint(1, 3)):
        made.append({"role": "user", "content": content(rng)})
        if rng.random() < 0.25:
            made += tool_turn(rng)
        if rng.random() < 0.8:
            reply = {"role": "assistant", "content": rng.choice(TEXTS + THOUGHTS)}
            if rng.random() < 0.2:
                reply["reasoning_content"] = rng.choice(("thinking…", "", "a\nb\n"))
            made.append(reply)
    if rng.random() < 0.03:
        made.append({"role": "ghost", "content": "boo"})
    return made


def conversation(rng, plain):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, you."}] if plain else messages(rng)
    variables = {"messages": utils._alias_reasoning_fields(utils._plain_template_data(chat)), "tools": None, "documents": None,
                 "add_generation_prompt": rng.random() < 0.5, "bos_token": "<s>", "eos_token": "</s>"}
    if rng.random() < 0.35:
        variables["tools"] = rng.choice(([TOOL], [TOOL, TOOL_2], []))
    if rng.random() < 0.2:
        variables["documents"] = [{"title": "One", "text": rng.choice(TEXTS)}, {"text": "no title", "year": 1999}]
    for name, values in {"enable_thinking": (True, False), "reasoning_effort": ("low", "high"), "date_string": ("1 Jan 2025",),
                         "citation_mode": ("fast", "accurate", "x"), "builtin_tools": (["now", "code_interpreter"],),
                         "controls": ({"length": "short"},), "add_vision_id": (True,)}.items():
        if rng.random() < 0.15:
            variables[name] = rng.choice(values)
    return variables


def write(name, value):
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace('],["', '],\n["')
    (FOLDER / name).write_text(text + "\n", encoding="utf-8")
    print(f"{name}  {len(text)} bytes")


def small_cases():
    sources = [f"{{{{ {line} }}}}" for line in EXPRESSIONS.split("\n")] + TEMPLATES
    rows = []
    for source in dict.fromkeys(sources):
        result = render(source, VARIABLES)
        rows.append([source, None] if result is None else [source, result[0], result[1]] if result[1] else [source, result[0]])
    print(len(rows), "cases,", sum(row[1] is None for row in rows), "fail")
    return {"variables": VARIABLES, "cases": rows}


def chats():
    rng = random.Random(20240726)
    conversations = [conversation(rng, i == 0) for i in range(200)]
    templates = []
    for name, source in SOURCES.items():
        results = [render(source, each) for each in conversations]
        failures = sum(r is None for r in results)
        print(f"{name}: {200 - failures} of 200 render")
        texts = [[i, results[i][0], results[i][1]] for i in (0, 7, 11) if results[i]]
        templates.append({"name": name, "source": source, "hashes": "".join(map(hash_of, results)), "texts": texts})
    return {"conversations": conversations, "templates": templates}


if __name__ == "__main__":
    write("cases.json", small_cases())
    write("chats.json", chats())
