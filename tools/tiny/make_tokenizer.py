#!/usr/bin/env python3
"""Writes the tiny SDXL's two tokenizers: a small vocabulary of its own in the format of CLIP's.

    make_tokenizer.py DIR    writes DIR/tokenizer and DIR/tokenizer_2

Ids are numbered as CLIP's are: the 256 bytes, the 256 bytes that end a word, one id for each merge, and the two
specials. As in SDXL, the first tokenizer pads with the end token and the second with `!`, id 0.
"""

import collections
import json
import pathlib
import re
import sys

import draw

START, END = "<|startoftext|>", "<|endoftext|>"
LENGTH = 77

# Words that a caption or a prompt may hold beside the drawn ones; each gets a token of its own.
EXTRA = """
    an the and or of in with by one two three big tiny bright dark light gray grey brown cyan
    ring oval rectangle hexagon arrow flower tree house cat dog sun sky cloud
    striped stripes dotted dots outlined outline style drawing picture photo art icon flat design no
    left right top bottom centre center middle
"""


def byte_characters():
    """GPT-2's printable stand-in for each byte, in the order of CLIP's ids: printable bytes first, as themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def word_counts():
    counts = collections.Counter(re.findall(r"[a-z]+", " ".join(draw.all_captions())))
    return counts + collections.Counter(EXTRA.split())


def merge_pair(symbols, pair):
    merged, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i:i + 2]) == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged


def learn_merges(counts):
    """Byte-pair merges, the most frequent pair first, until each word is one token."""
    words = {word: [*word[:-1], word[-1] + "</w>"] for word in counts}
    merges = []
    while True:
        pairs = collections.Counter()
        for word, symbols in words.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += counts[word]
        if not pairs:
            return merges
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = {word: merge_pair(symbols, best) for word, symbols in words.items()}


def special(content):
    return {"content": content, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(folder, vocabulary, merges, pad):
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    folder.joinpath("merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    specials = {"bos_token": special(START), "eos_token": special(END), "unk_token": special(END), "pad_token": pad}
    write_json(folder / "special_tokens_map.json", specials)
    write_json(folder / "tokenizer_config.json", {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(vocabulary[token]): {**special(token), "special": True}
                                 for token in sorted({START, END, pad}, key=vocabulary.get)},
        "bos_token": START,
        "clean_up_tokenization_spaces": True,
        "do_lower_case": True,
        "eos_token": END,
        "errors": "replace",
        "model_max_length": LENGTH,
        "pad_token": pad,
        "tokenizer_class": "CLIPTokenizer",
        "unk_token": END,
    })


def write_tokenizers(out):
    """Writes both tokenizers and returns the size of their vocabulary."""
    merges = learn_merges(word_counts())
    tokens = byte_characters()
    tokens += [token + "</w>" for token in tokens]
    tokens += ["".join(pair) for pair in merges] + [START, END]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    assert len(vocabulary) == len(tokens)
    write_tokenizer(out / "tokenizer", vocabulary, merges, pad=END)
    write_tokenizer(out / "tokenizer_2", vocabulary, merges, pad="!")
    return len(vocabulary)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_tokenizer.py DIR")
    size = write_tokenizers(pathlib.Path(sys.argv[1]))
    print(f"{size} ids")


if __name__ == "__main__":
    main()
