"""Prompts in ComfyUI's syntax of weights: their parts, tokens, weights, and the states that text encoders make of them.

    python tools/golden/prompts.py      writes tests/golden/prompts/

Written from a description of the syntax (wick/text/prompt_syntax.h), on transformers. It was held once against ComfyUI
itself (October 2025) with the same tokenizers and encoders: parts, tokens and weights are the same, states to float32
rounding. ComfyUI is under the GPL, and none of its code is here.

prompts.json has for each prompt `parts` (texts and weights), `l` and `g` (ids of CLIP-L and bigG, chunk after chunk), `weights`
of those tokens, `t5` and `t5_weights` (with the end token). sdxl.safetensors has `states.N` [1, 77 n, 40] and `pooled.N`
[1, 20] of the tiny SDXL for the N-th prompt, sd3.safetensors `clip.N`, `pooled.N` and `t5.N` [1, 256, 24] of the tiny SD3,
both for some prompts.
"""

import json
import re

import torch
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizerFast, PreTrainedTokenizerFast, T5EncoderModel

from golden import MODEL, ROOT, save

OUT = ROOT / "prompts"
CHUNK, KEPT_WHOLE, T5_TOKENS = 75, 8, 256
COMMAS = "a red heart with stripes and dots on a thick outline, " * 5
WORDS = "one two three four five six seven eight nine ten eleven twelve "
WITH_STATES = [
    "",
    "a cat",
    "a (red:1.3) heart",
    "((a)) (b (c:1.5) d:0.7) e",
    "(zero:0) and (minus:-0.5)",
    "wow! (so! good!:1.2) !!",
    "(" + COMMAS + ":1.2) and (more:0.8)",
    "a " * 75 + "(b:2)",
    "a " * 74 + "(b b:2) c",
]
PROMPTS = WITH_STATES + [
    "(a cat)", "(a:1.2:1.3)", "(word:)", "(word:abc)", "()", "(:1.3)", "( :1.3) x", "a ( ) b", "a (b:1.0) c",
    "unbalanced (open here", "unbalanced close) here (not weighed) but ((this is)) all", "(a (b) and", "(a (b)", ")(a)(b:2)",
    "a\\(b\\) (c\\):1.4)", "\\\\(x\\\\)", "(x:1.2\\))", "(x:1.2\\", "back\\slash \\",
    "(spaces: 1.25 ) (exp:1e-1) (plus:+.5) (dot:2.) (under:1_0.5)", "(a:1__0)", "(a:_1)", "(a:1_)", "(a:.)", "(a:+-1)", "(a:1e)",
    "(a:0x10)", "(a: 1 2)", "(a:\t2\n)", "(\u3000x:\u30001.5\u3000)", "(a:inf", "un(believ:1.2)able", "a\n(b\n:1.5)\tc", "(((((deep)))))",
    "xembedding:foo (an\tembedding:1.2)", "<|endoftext|> (x:2) <|startoftext|>", "\u00e9 (na\u00efve \u6771\u4eac:1.2) \u00c0\u00c9",
    "it's (i'm:1.1) 'll", "[a] {b} (c, d: 1.1, e)", "(a):1.3", "(a:1.3))", "((a:1.3)", "(a)(b)(c:2)(d)",
    COMMAS, WORDS * 6, WORDS * 3 + "(kept together here:1.3) " + WORDS * 3 + "(x:0.5)",
    "a " * 70 + "(b b b b b b b:1.2) (c c c c c c c c:0.9)", "a " * 75, "a " * 76, "a " * 75 + "(b b b b b b b b b b:1.1)",
]
ESCAPED = {"\\(": "\ue000", "\\)": "\ue001"}


def outermost(text):
    depth, piece = 0, ""
    for token in re.split(r"([()])", text):
        if token == "(" and depth == 0:
            yield piece
            piece = ""
        piece += token
        depth += (token == "(") - (token == ")")
        if token == ")" and depth == 0:
            yield piece
            piece = ""
    yield piece


def number_behind_colon(text):
    before, colon, behind = text.rpartition(":")
    try:
        return (before, float(behind)) if before and colon else None
    except ValueError:
        return None


def parts_of(text, weight=1.0):
    parts = []
    for piece in filter(None, outermost(text)):
        if piece[0] == "(" and piece[-1] == ")" and len(piece) > 1:
            parts += parts_of(*number_behind_colon(piece[1:-1]) or (piece[1:-1], weight * 1.1))
        else:
            parts.append((piece.replace("\ue000", "(").replace("\ue001", ")"), weight))
    return parts


def read(prompt):
    for written, mark in ESCAPED.items():
        prompt = prompt.replace(written, mark)
    return parts_of(prompt)


def chunks(tokenizer, parts, pad):
    """Rows of 77 ids, and of their weights."""
    rows, row = [], []
    for text, weight in parts:
        tokens = [(i, weight) for i in tokenizer(text, add_special_tokens=False).input_ids]
        if len(tokens) < KEPT_WHOLE and len(row) + len(tokens) > CHUNK:
            rows.append(row)
            row = []
        row += tokens
        while len(row) > CHUNK:
            rows.append(row[:CHUNK])
            row = row[CHUNK:]
    start, end = (tokenizer.bos_token_id, 1.0), (tokenizer.eos_token_id, 1.0)
    whole = [[start, *r, end] + [(pad, 1.0)] * (CHUNK - len(r)) for r in rows + [row]]
    return [[i for i, _ in r] for r in whole], [[w for _, w in r] for r in whole]


def t5_row(tokenizer, parts):
    row = [(i, w) for text, w in parts for i in tokenizer(text, add_special_tokens=False).input_ids]
    row.append((tokenizer.eos_token_id, 1.0))
    return [i for i, _ in row], [w for _, w in row]


def padded(row, padding):
    return row + [padding] * (T5_TOKENS - len(row))


def mixed(states, empty, weights):
    weight = torch.tensor(weights).unsqueeze(-1)
    return torch.where(weight == 1, states, torch.lerp(empty.expand_as(states), states, weight)).reshape(1, -1, states.shape[-1])


def clip_states(encoder, rows, weights, empty):
    with torch.no_grad():
        out = encoder(torch.tensor(rows), output_hidden_states=True)
        nothing = encoder(torch.tensor(empty), output_hidden_states=True)
    pooled = out.text_embeds if hasattr(out, "text_embeds") else out.pooler_output
    return mixed(out.hidden_states[-2], nothing.hidden_states[-2], weights), pooled[:1]


def t5_states(encoder, row, weights, empty):
    with torch.no_grad():
        states, nothing = (encoder(torch.tensor([padded(ids, 0)]))[0] for ids in (row, empty))
    return mixed(states, nothing, [padded(weights, 1.0)])


def main():
    clip = CLIPTokenizerFast.from_pretrained(MODEL, subfolder="tokenizer")
    unigram = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "t5_tokenizer" / "tokenizer.json"), eos_token="</s>")
    sdxl = [CLIPTextModel.from_pretrained(MODEL, subfolder="text_encoder"),
            CLIPTextModelWithProjection.from_pretrained(MODEL, subfolder="text_encoder_2")]
    sd3 = [CLIPTextModelWithProjection.from_pretrained(ROOT / "sd3", subfolder=n) for n in ("text_encoder", "text_encoder_2")]
    t5 = T5EncoderModel.from_pretrained(ROOT / "sd3", subfolder="text_encoder_3")
    pads = [clip.eos_token_id, 0]
    empty = [chunks(clip, [], pad)[0] for pad in pads]
    told, of_sdxl, of_sd3 = [], {}, {}
    for n, prompt in enumerate(PROMPTS):
        parts = read(prompt)
        (l, weights), (g, _) = (chunks(clip, parts, pad) for pad in pads)
        t5_ids, t5_weights = t5_row(unigram, parts)
        told.append(dict(prompt=prompt, parts=parts, l=sum(l, []), g=sum(g, []), weights=sum(weights, []), t5=t5_ids,
                         t5_weights=t5_weights))
        if prompt not in WITH_STATES:
            continue
        for into, name, encoders in ((of_sdxl, "states", sdxl), (of_sd3, "clip", sd3)):
            both = [clip_states(e, ids, weights, none) for e, ids, none in zip(encoders, (l, g), empty)]
            into[f"{name}.{n}"] = torch.cat([states for states, _ in both], -1)
            into[f"pooled.{n}"] = both[1][1] if encoders is sdxl else torch.cat([pooled for _, pooled in both], -1)
        of_sd3[f"t5.{n}"] = t5_states(t5, t5_ids, t5_weights, t5_row(unigram, [])[0])
    OUT.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in told)
    (OUT / "prompts.json").write_text(f"[\n{lines}\n]\n")
    save(OUT / "sdxl.safetensors", of_sdxl)
    save(OUT / "sd3.safetensors", of_sd3)


if __name__ == "__main__":
    main()
