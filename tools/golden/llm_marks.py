"""The tokens that lie over ranges of texts, by the offsets of HF tokenizers, for the small tokenizers of llm_tokenizers.py.

    python tools/golden/llm_marks.py

writes tests/golden/tokenizers/FAMILY/marks.json. For each of the 10,000 lines (llm_lines.py, with errors="replace"), encoded
without <s> and with control tokens recognised, four ranges are drawn:

    ranges     a hash for every ten lines (llm_tokenizers.py), over the first token and the one behind the last of each range
    lines      [index, [[start, end, first, last], ...]] of every 97th line; start and end are bytes in UTF-8

A token lies over [start, end) if it starts before `end` and ends behind `start`: the rule of transformers'
apply_chat_template(return_assistant_tokens_mask=True). Where there is no such token, first is last, the number of tokens that
end at `start` or before it.

Two things are kept out. ByteLevel's trim_offsets is off: it would take the spaces from tokens, but only from their offsets.
And no range starts or ends where NFC joins the characters on both sides, since offsets give the composed character to one of
them.
"""

import json
import unicodedata

from tokenizers import Tokenizer

import llm_lines
from llm_tokenizers import FAMILIES, hashes, id_bytes

RANGES = 4


def load(path):
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    post = tokenizer["post_processor"]
    for step in [] if post is None else post.get("processors", [post]):
        if step["type"] == "ByteLevel":
            step["trim_offsets"] = False
    return Tokenizer.from_str(json.dumps(tokenizer)), tokenizer["normalizer"] == {"type": "NFC"}


def joins(text, at):
    def nfc(part):
        return unicodedata.normalize("NFC", part)
    return nfc(text[:at]) + nfc(text[at:]) != nfc(text)


def ranges_of(tokenizer, is_nfc, index, text):
    """[start, end, first, last] for each range, start and end in bytes."""
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    draw = llm_lines.Draw(llm_lines.COUNT + index)
    found = []
    for _ in range(RANGES):
        start, end = sorted((draw.below(len(text) + 1), draw.below(len(text) + 1)))
        if is_nfc and (joins(text, start) or joins(text, end)):
            continue
        over = [i for i, (first, last) in enumerate(offsets) if first < end and last > start]
        before = sum(last <= start for _, last in offsets)
        first, last = (over[0], over[-1] + 1) if over else (before, before)
        assert over == list(range(first, last))
        found.append([len(text[:start].encode()), len(text[:end].encode()), first, last])
    return found


def main():
    texts = [line.decode(errors="replace") for line in llm_lines.lines()]
    for name in FAMILIES:
        tokenizer, is_nfc = load(llm_lines.FOLDER / name / "tokenizer.json")
        found = [ranges_of(tokenizer, is_nfc, i, text) for i, text in enumerate(texts)]
        golden = {"ranges": hashes(found, lambda ranges: id_bytes([n for r in ranges for n in r[2:]])),
                  "lines": [[i, found[i]] for i in range(0, len(found), 97)]}
        path = llm_lines.FOLDER / name / "marks.json"
        path.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{name}/marks.json  {sum(map(len, found))} ranges")


if __name__ == "__main__":
    main()
