"""Hard strings through CLIP's tokenizer, with both of the tiny SDXL's tokenizers.

The ids are CLIPTokenizerFast's. Where CLIPTokenizer (the slow one, without ftfy) says otherwise, its ids stand beside
them as `tokenizer_slow`, `tokenizer_2_slow`.

    python tools/golden/tokenizer.py      writes tests/golden/tokenizer.json
"""

import json

from transformers import CLIPTokenizer, CLIPTokenizerFast

from golden import MODEL, ROOT

TEXTS = [
    "",
    " ",
    "a",
    "A photo of a cat",
    "a photo of a small red fox in the snow, highly detailed",
    "AN ASTRONAUT RIDING A HORSE",
    "  leading and trailing spaces   ",
    "tabs\tand\nnewlines\r\nand   many    spaces",
    "no\u00a0break\u2003em space\u3000ideographic\u200bzero width",
    "line\u2028separator\u2029paragraph\u0085next line\x0bvertical\x0cfeed",
    "control\x00null\x01one\x1funit\x7fdelete\x80pad",
    "file\x1cgroup\x1drecord\x1eseparators",
    "it's they're we've I'm you'll he'd don't",
    "IT'S THEY'RE WE'VE I'M YOU'LL HE'D DON'T",
    "it\u2019s curly they\u2019re",
    "'s 't 're alone and 'tis rock'n'roll ''s 'S",
    "o'reilly's 're'dge''",
    "dogs' bowls",
    "1234567890 3.14 1,000 a1b2c3 2nd 0x1f",
    "\u0661\u0662\u0663 \u00bd \u00b2 \u2167 \u2460 \uff11\uff12",
    "hello!!! what?! ... --- ### $%^&*()",
    "a!b ! !! c!",
    "!",
    "cat, dog; bird: fish. (round) [square] {curly} <angle> \"quote\" `tick`",
    "under_score snake_case __init__ a-b a--b a/b\\c @user #tag",
    "url https://example.com/a?b=c&d=e#f",
    "&amp; &lt;b&gt; &quot;x&quot; &#39; &eacute; &amp;amp;",
    "<b>bold</b> <br/>",
    "(weighted:1.3) [less] ((more)) \\(escaped\\) <lora:name:0.8>",
    "caf\u00e9 na\u00efve \u00fcber stra\u00dfe \u00c5ngstr\u00f6m",
    "cafe\u0301 na\u00efve u\u0308ber",
    "\u212b \u1e9b\u0323 \ufb01 \u01c4",
    "\u0130stanbul \u0131 I\u0307",
    "STRASSE STRA\u1e9eE \u03a3\u0399\u0393\u039c\u0391\u03a3 \u039f\u03a3",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440",
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u1f08\u03b8\u1fc6\u03bd\u03b1\u03b9",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3001\u732b\u3068\u72ac\u3002",
    "\u4e2d\u6587 mixed with english \u548cabc",
    "\ud55c\uad6d\uc5b4 \u110b\u1161\u11ab",
    "\u0905\u0902\u0924\u0930\u093f\u0915\u094d\u0937",
    "\u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\u0e44\u0e17\u0e22",
    "\U0001f600 \U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1eb\U0001f1ee",
    "cat\U0001f431dog",
    "\U00010400\U00010428 \U0001d400bold \U00020000",
    "\u00abguillemets\u00bb \u201cquotes\u201d \u2018single\u2019 \u2013 \u2014 \u2026 \u00a9\u00ae\u2122 \u20ac\u00a3\u00a5 \u00b0",
    "\ufeffbyte order mark",
    "soft\u00adhyphen \u200djoiner\u200c \u2060word",
    "\ufffd replacement \ue000 private \U0010ffff last",
    "combining \u0301 alone, \u0301\u0302\u0303",
    "<|endoftext|>",
    "<|startoftext|>",
    "a cat<|endoftext|>a dog",
    "a <|startoftext|> b <|ENDOFTEXT|> c",
    "<|endoftext|><|endoftext|> <| endoftext |> <|endoftext|",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethe ofof inin andand the",
    "a " * 74 + "b",
    "a " * 75,
    "a " * 76,
    "a " * 200 + "end",
    "cat " * 74 + "photograph of something",
    "\u732b" * 40,
]


def main():
    names = ["tokenizer", "tokenizer_2"]
    slow = [CLIPTokenizer.from_pretrained(MODEL, subfolder=n) for n in names]
    fast = [CLIPTokenizerFast.from_pretrained(MODEL, subfolder=n) for n in names]
    cases = []
    for text in TEXTS:
        row = {"text": text}
        for name, s, f in zip(names, slow, fast):
            options = dict(padding="max_length", max_length=77, truncation=True)
            row[name] = f(text, **options).input_ids
            other = s(text, **options).input_ids
            if other != row[name]:
                row[name + "_slow"] = other
                print("the slow one differs:", name, ascii(text[:60]))
        cases.append(row)
    lines = ",\n".join("  " + json.dumps(c, separators=(",", ":")) for c in cases)
    (ROOT / "tokenizer.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"tokenizer.json  {len(cases)} cases")


if __name__ == "__main__":
    main()
