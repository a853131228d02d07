"""Ids, masks and loss rows of conversations under chat templates, by transformers' apply_chat_template.

ids.json      lines: conversations as data sets have them (null contents, parts, calls of tools, thoughts under three names,
              "weight" and "train"), and the indices of those of which only the last turn is learnt. For each template of
              chat_template_sources.py: a tokenizer of tests/golden/tokenizers, the marks that are added to it as control
              tokens, three hashes for each line, and a few lines whole.

    prompts    the ids of apply_chat_template(messages, add_generation_prompt=True, …)
    generated  the ids without it, and assistant_masks
    rows       what a training run learns: the ids of each row, and which of them count in the loss

A hash is 32-bit FNV-1a over the ids as four bytes each, little end first, and -1 behind each list (masks are lists of 0 and
1); of "failed" where transformers fails. "--------" stands where the rule of rows asks for a rendering that the template
refuses, or where neither a prompt nor what is before it is a start of the answer's text.

The rule of rows is written here a second time, on texts alone. An assistant's turn k wrote what render(messages[:k + 1]) has
behind render(messages[:k], add_generation_prompt=True); a token counts if it overlaps that. Where a prompt is no start of
the answer's text (it opens a thought that the answer does not have), the turn begins where the two part, or where the
assistant's own words begin if that is before, but not before the end of render(messages[:k]). Where render(messages[:k + 1]) is no start of the whole for a turn that is
learnt, each such turn is a row of its own, rendered up to it. Templates with {% generation %} have transformers' mask; of it
what lies in the turns that are learnt, if not all are.

Two things are not left to transformers. Contents have no control token of any tokenizer here: Wick reads these as text, where
transformers makes control tokens. And a template gets parts as one text, and the arguments of a call as text or as an object,
where it would print the other form as Python prints it (FORMS says what each one writes); a part that is no text then fails.
The offsets of tokens are whole: the files here have trim_offsets off in their post-processor.

    python tools/golden/chat_ids.py [TEMPLATE LINE]      writes tests/golden/chat_templates/ids.json, or shows one case
"""

import copy
import json
import random
import re
import struct
import sys

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import chat_templates
import golden
from chat_template_sources import SOURCES
from chat_templates import TOOL, TOOL_2, fnv1a

COUNT = 200
TOOLS = [[TOOL], [TOOL, TOOL_2], []]  # a line has the index of one of these
SHOWN = 2  # whole cases for each template
FAILED, SKIPPED = fnv1a(b"failed"), "--------"
GENERATION = re.compile(r"\{\%-?\s*generation\s*-?\%\}")  # as transformers looks for it



class Failed(Exception):
    pass


# template -> (tokenizer, marks of the template that are control tokens)
TOKENIZERS = {
    "chatml_loop": ("qwen3", []), "default_system": ("smollm", []), "llama_factory": ("llama2", ["<eos>"]),
    "inst_alternate": ("llama2", []), "inst_tools": ("mistral3", ["[T]", "[/T]", "[R]", "[/R]"]),
    "dated_system": ("tekken", ["[S]", "[/S]", "[Q]", "[/Q]", "[P]"]), "llama3_trim": ("llama3", ["<h>", "</h>", "<eot>"]),
    "llama31_tools": ("llama3", ["<h>", "</h>", "<eot>", "<eom>"]),
    "llama4_parts": ("llama3", ["<|header|>", "<|/header|>", "<|eot|>", "<|image|>"]),
    "gemma_roles": ("llama2", ["<turn>", "</turn>", "<image>"]), "gemma_refuses": ("mistral3", ["<turn>", "</turn>"]),
    "schema_macros": ("mistral3", ["<|turn>", "<|tool>", "<|call>", "<q>"]),
    "phi_roles": ("llama2", ["<|user|>", "<|assistant|>", "<|system|>", "<|.|>"]), "phi_crlf": ("tekken", ["<|user|>", "<|assistant|>"]),
    "deepseek_flags": ("llama3", ["<｜Q｜>", "<｜A｜>", "<｜R｜>", "<｜.｜>"]), "deepseek_thinking": ("tekken", ["<｜User｜>", "<｜Assistant｜>"]),
    "glm_observation": ("qwen3", ["[M]", "<go>", "<|user|>", "<|assistant|>", "<|seen|>"]),
    "harmony_types": ("tekken", ["<|go|>", "<|.|>", "<|end|>", "<|call|>", "<|done|>"]),
    "harmony_channels": ("llama3", ["<|go|>", "<|way|>", "<|.|>", "<|end|>", "<|done|>"]),
    "command_documents": ("tekken", ["<|USER|>", "<|BOT|>", "<|SYS|>", "<|EOT|>"]),
    "granite_documents": ("smollm", ["<|role|>", "<|/role|>", "<|eot|>"]), "olmo_functions": ("tekken", ["<|user|>", "<|assistant|>"]),
    "hermes_macros": ("mistral3", ["<|user|>", "<|/user|>"]), "zephyr": ("llama2", ["<|q|>", "<|a|>"]),
    "alpaca": ("llama2", []), "vicuna": ("llama2", []), "generation_plain": ("llama3", ["<|a|>", "<|e|>", "<|user|>"]),
    "generation_in_macro": ("mistral3", []), "nemotron_search": ("tekken", ["<SPECIAL_10>", "<SPECIAL_11>"]),
    "text_methods": ("mistral3", []), "tool_json_styles": ("llama3", []), "raw_and_with": ("llama2", []),
}

# The forms that a template writes: "parts" of content; arguments of calls as "objects" and "texts". Others write text alone.
FORMS = {
    "inst_tools": ["objects"], "dated_system": ["parts"], "llama31_tools": ["objects"], "llama4_parts": ["parts", "objects"],
    "gemma_roles": ["parts"], "schema_macros": ["parts", "objects", "texts"], "deepseek_flags": ["texts"],
    "deepseek_thinking": ["objects", "texts"], "glm_observation": ["parts", "objects"], "harmony_types": ["objects"],
    "qwen25_tools": ["objects"], "qwen35_parts": ["parts", "objects"], "olmo_functions": ["objects"],
    "generation_tools": ["objects"], "tool_json_styles": ["objects", "texts"],
}


def text_of(parts):
    for part in parts:
        if part["type"] != "text":
            raise Failed(f"a part of type {part['type']}")
    return "\n".join(part["text"] for part in parts)


def fitted(message, forms):
    made = dict(message)
    if isinstance(message.get("content"), list) and "parts" not in forms:
        made["content"] = text_of(message["content"])
    for call in message.get("tool_calls") or []:
        function = dict(call["function"])
        if isinstance(function["arguments"], str) and "objects" in forms and "texts" not in forms:
            function["arguments"] = json.loads(function["arguments"])
        if isinstance(function["arguments"], dict) and "texts" in forms and "objects" not in forms:
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False, separators=(",", ":"))
        made.setdefault("fitted", []).append({**call, "function": function})
    if "fitted" in made:
        made["tool_calls"] = made.pop("fitted")
    return made


def tokenizer_of(template):
    """The files of the tokenizer with the marks behind its tokens, and special tokens as its config names them."""
    family, marks = TOKENIZERS.get(template, ("qwen3", []))
    folder = golden.ROOT / "tokenizers" / family
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {*data["model"]["vocab"].values(), *(each["id"] for each in data["added_tokens"])}
    for i, mark in enumerate(marks, max(ids) + 1):
        data["added_tokens"].append({"id": i, "content": mark, "single_word": False, "lstrip": False, "rstrip": False,
                                     "normalized": False, "special": True})
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {key: config[key] if isinstance(config[key], str) else config[key]["content"]
               for key in ("bos_token", "eos_token") if config.get(key)}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), **special)
    assert len(made) == max(ids) + 1 + len(marks), family
    return made, family, marks


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (key, *strings(each))
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def message_list(rng):
    made = [m for m in chat_templates.messages(rng) if m["role"] != "ghost"]
    for message in made:
        if message["role"] == "assistant":
            if "reasoning_content" in message and rng.random() < 0.5:
                message[rng.choice(("thinking", "reasoning"))] = message.pop("reasoning_content")
            if rng.random() < 0.1:
                message["reasoning_content"] = None
            if rng.random() < 0.08:
                message.update(rng.choice(({"weight": 0}, {"weight": 1}, {"train": False}, {"train": True})))
        if message["role"] == "user" and rng.random() < 0.1:
            message["name"] = None
        if isinstance(message["content"], list) and rng.random() < 0.8:
            message["content"] = [part for part in message["content"] if part["type"] == "text"]
        if isinstance(message["content"], str) and rng.random() < 0.04:
            message["content"] = "a  <tool>  b hahaha, Hello world! The user asks."  # tokens that are no control tokens
    return made


def line_of(rng, plain):
    line = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, you."}] if plain
            else message_list(rng)}
    if rng.random() < 0.3:
        line["tools"] = rng.randrange(len(TOOLS))
    if rng.random() < 0.15:
        line["documents"] = [{"title": "One", "text": rng.choice(chat_templates.TEXTS)}, {"text": "no title", "year": 1999}]
    variables = {name: rng.choice(values) for name, values in {
        "enable_thinking": (True, False), "reasoning_effort": ("low", "high"), "date_string": ("1 Jan 2025",),
        "builtin_tools": (["now", "code_interpreter"],), "thinking": (True, False), "controls": ({"length": "short"},),
    }.items() if rng.random() < 0.12}
    if variables:
        line["chat_template_kwargs"] = variables
    return line


def common(a, b):
    """The length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class Case:
    """A line under a template."""

    def __init__(self, tokenizer, name, line, only_last):
        self.tokenizer, self.source, self.forms = tokenizer, SOURCES[name], FORMS.get(name, ())
        self.messages = [{k: v for k, v in m.items() if k not in ("weight", "train")} for m in line["messages"]]
        self.learns = [m["role"] == "assistant" and bool(m.get("weight", m.get("train", True))) for m in line["messages"]]
        self.turns = [k for k, m in enumerate(self.messages) if m["role"] == "assistant"]
        self.learnt = [k for k in (self.turns[-1:] if only_last else self.turns) if self.learns[k]]
        self.given = {"tools": TOOLS[line["tools"]] if "tools" in line else None, "documents": line.get("documents"), **line.get("chat_template_kwargs", {})}

    def apply(self, count=None, prompt=False, **how):
        try:
            messages = [fitted(message, self.forms) for message in self.messages[:count]]
            return self.tokenizer.apply_chat_template(messages, chat_template=self.source, add_generation_prompt=prompt,
                                                      **self.given, **how)
        except Exception as e:  # any failure of a template
            raise Failed(str(e)) from e

    def ids(self, prompt, count=None):
        made = self.apply(count, prompt, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        return made["input_ids"], made["assistant_masks"]

    def text(self, count, prompt=False):
        return self.apply(count, prompt, tokenize=False)

    def changed(self, k, answer):
        """How far the answer's text does not depend on what the assistant says at turn k."""
        other = copy.copy(self)
        other.messages = copy.deepcopy(self.messages)
        message = other.messages[k]
        for key in ("content", "reasoning_content", "thinking", "reasoning"):
            if message.get(key):
                message[key] = "\x01"
        try:
            return common(answer, other.text(k + 1))
        except Failed:
            return len(answer)

    def span(self, k, answer):
        prompt = self.text(k, True)
        if answer.startswith(prompt):
            return len(prompt), len(answer)
        before = self.text(k)
        if not answer.startswith(before):
            raise Failed("earlier turns are written anew")
        return max(min(common(prompt, answer), self.changed(k, answer)), len(before)), len(answer)

    def row(self, text, spans):
        encoded = self.tokenizer(text, add_special_tokens=False).encodings[0]
        counts = [int(any(first < stop and last > start for start, stop in spans)) for first, last in encoded.offsets]
        return [encoded.ids, counts]

    def rows(self):
        if not self.turns:
            raise Failed("nothing to learn")
        whole = self.text(None)
        generation = GENERATION.search(self.source)
        if generation and self.learnt == self.turns:
            return [list(self.ids(False))]
        answers = {k: self.text(k + 1) for k in self.learnt}
        spans = {k: self.span(k, answers[k]) for k in self.learnt}
        if all(whole.startswith(answers[k]) for k in self.learnt):
            made = [(None, self.row(whole, spans.values()))]
        else:
            made = [(k + 1, self.row(answers[k], [spans[k]])) for k in self.learnt]
        if not generation:
            return [row for _, row in made]
        return [[ids, [a & b for a, b in zip(counts, self.ids(False, count)[1])]] for count, (ids, counts) in made]


def hash_of(lists):
    return fnv1a(b"".join(struct.pack(f"<{len(each) + 1}i", *each, -1) for each in lists))


def results(case):
    """The hashes of a case, and what they are of."""
    hashes, whole = [], []
    for make in (lambda: [case.ids(True)[0]], lambda: case.ids(False), lambda: sum(case.rows(), [])):
        try:
            lists = make()
            hashes.append(hash_of(lists))
        except Failed:
            lists = None
            hashes.append(FAILED)
        whole.append(lists)
    if hashes[2] == FAILED and hashes[1] != FAILED and case.turns:
        hashes[2] = SKIPPED
    return hashes, whole


def lines():
    rng = random.Random(20250301)
    made = [line_of(rng, i == 0) for i in range(COUNT)]
    return made, sorted(rng.sample(range(COUNT), COUNT // 6))


def show(name, index):
    all_lines, last = lines()
    tokenizer, family, marks = tokenizer_of(name)
    case = Case(tokenizer, name, all_lines[index], index in last)
    print(name, family, marks, json.dumps(all_lines[index], ensure_ascii=False, indent=1), f"last: {index in last}", sep="\n")
    for what, prompt in (("prompt", True), ("whole", False)):
        try:
            print(f"{what}: {case.text(None, prompt)!r}")
        except Failed as e:
            print(f"{what} fails: {e}")
    print(*results(case)[1], sep="\n")
    for ids, counts in case.rows():
        print([(tokenizer.convert_ids_to_tokens(i), c) for i, c in zip(ids, counts)])


def main():
    all_lines, last = lines()
    templates = []
    for name in SOURCES:
        tokenizer, family, marks = tokenizer_of(name)
        control = {*marks, *(t.content for t in tokenizer.added_tokens_decoder.values() if t.special)}
        found = [s for s in strings([all_lines, TOOLS]) if any(c in s for c in control)]
        assert not found, (name, found[:3])
        hashes, shown = ["", "", ""], []
        for i, line in enumerate(all_lines):
            made, whole = results(Case(tokenizer, name, line, i in last))
            hashes = [a + b for a, b in zip(hashes, made)]
            if None not in whole and len(shown) < SHOWN and (i == 0 or len(line["messages"]) > 3) and sum(map(len, whole[2])) < 200:
                shown.append([i, whole[0][0], whole[1], [whole[2][k:k + 2] for k in range(0, len(whole[2]), 2)]])
        of = [[h[k:k + 8] for k in range(0, len(h), 8)] for h in hashes]
        print(f"{name}: {sum(h != FAILED for h in of[1])} of {COUNT} render, {sum(h == SKIPPED for h in of[2])} rows skipped")
        templates.append({"name": name, "tokenizer": family, "marks": marks, "prompts": hashes[0], "generated": hashes[1],
                          "rows": hashes[2], "whole": shown})
    chat_templates.write("ids.json", {"tools": TOOLS, "lines": all_lines, "last": last, "templates": templates})


if __name__ == "__main__":
    show(sys.argv[1], int(sys.argv[2])) if len(sys.argv) == 3 else main()
