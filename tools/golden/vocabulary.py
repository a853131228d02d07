"""A small byte-level BPE vocabulary in CLIP's format, learnt from a page of our own English.

CLIP's order of ids: 256 byte characters, the same 256 with </w>, one id a merge, <|startoftext|>, <|endoftext|>.
The byte characters are in CLIP's order too, so that "!" is id 0 and "!</w>" id 256.
"""

import collections
import json

import regex
from transformers.convert_slow_tokenizer import bytes_to_unicode

MERGES = 300

TEXT = """
A photograph of an astronaut riding a horse on the moon. A painting of a small red fox in the snow, highly detailed,
by the light of the evening. The cat sat on the mat and looked at the dog; the dog did not look at the cat. A portrait
of a woman with a blue hat, studio lighting, sharp focus. A wide landscape with mountains, a river and a forest in the
morning mist. The old house at the end of the street has a green door and a garden full of flowers. An illustration of
a robot reading a book under a tree. Photo of a plate of pasta with tomatoes and basil on a wooden table. The castle on
the hill, fantasy art, dramatic sky, golden hour. A close up of a bird's eye. Two children are playing with a kite on
the beach in summer. A watercolor of a sailing ship in a storm, high quality. Blurry, low quality, bad anatomy, worst
quality, watermark, text. It's raining and they're walking; we've seen it, I'm sure you'll like it, he'd say, don't you?
A black and white photo of a street in the city at night, rain, reflections, neon lights. A cute little dragon made of
glass, in the style of an old master. The train goes through the mountains. A bowl of fruit, still life, oil on canvas.
A knight in shining armor standing before the gate. A cup of coffee on a desk next to a notebook and a pen.
"""

PATTERN = regex.compile(
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", regex.IGNORECASE)


def learn():
    byte_to_char = bytes_to_unicode()
    words = collections.Counter(PATTERN.findall(" ".join(TEXT.lower().split())))
    spelt = {}
    for word, count in words.items():
        chars = [byte_to_char[b] for b in word.encode()]
        chars[-1] += "</w>"
        spelt[word] = (chars, count)
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter()
        for chars, count in spelt.values():
            for pair in zip(chars, chars[1:]):
                pairs[pair] += count
        # The most frequent pair; among equals the first in alphabetical order.
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        for chars, _ in spelt.values():
            i = 0
            while i + 1 < len(chars):
                if (chars[i], chars[i + 1]) == best:
                    chars[i:i + 2] = [chars[i] + chars[i + 1]]
                i += 1
    chars = list(byte_to_char.values())
    tokens = chars + [c + "</w>" for c in chars] + [a + b for a, b in merges] + ["<|startoftext|>", "<|endoftext|>"]
    assert len(set(tokens)) == len(tokens)
    return {t: i for i, t in enumerate(tokens)}, merges


def write(folder):
    vocab, merges = learn()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    lines = ["#version: 0.2"] + [f"{a} {b}" for a, b in merges]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return vocab
