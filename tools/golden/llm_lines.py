"""Ten thousand odd lines of text, the same in Python and in C++ (tests/text/lines.h), made of a file of fragments.

    python tools/golden/llm_lines.py      writes tests/golden/tokenizers/fragments.json
"""

import json
import os
from pathlib import Path

ROOT = Path(os.environ.get("WICK_GOLDEN_OUT", Path(__file__).resolve().parents[2] / "tests" / "golden"))
FOLDER = ROOT / "tokenizers"
COUNT = 10_000

# The groups are drawn with equal chance.
GROUPS = {
    "english": "the a of and river house mountain children walked quickly through Garden's morning light because "
               "nobody had told them it wouldn't rain Hello world I'm you're we've they'll she'd DON'T IT'S WE'LL "
               "o'clock rock'n'roll 'tis 's 't 'LL tokenization internationalization supercalifragilistic cat Cat CAT "
               "camelCase PascalCase HTTPServer iPhone eBay McDonald XMLHttpRequest".split(),
    "european": "Straße größer über Ärger café naïve garçon où être señor niño mañana ação coração è più città łódź "
                "żółć příliš žluťoučký kůň årsmöte ærø smørrebrød þorn ðæt ñandú œuvre İstanbul ığdır ŞİŞ ſtop l'été "
                "qu'il cafe\u0301 u\u0308ber A\u030angstro\u0308m \u212b \u1e9b\u0323 ﬁn ﬆ Ǆ ǅ ǆ".split(),
    "greek_cyrillic": "Ελληνικά ΟΔΟΣ ὁδός Ἀθῆναι καί Привет мир Съешь ещё этих мягких французских булок їжак ґанок "
                      "љубав ЊЕГОВ Қазақша Ӏ Ծիածան հայերեն ქართული ᲥᲐᲠᲗᲣᲚᲘ".split(),
    "semitic": "שלום עולם בְּרֵאשִׁית מرحبا مرحبا بالعالم ٱلْعَرَبِيَّة ١٢٣ ۴۵۶ ܫܠܡܐ አማርኛ ሰላም".split(),
    "indic": "नमस्ते दुनिया क्षत्रिय हिन्दी १२३ বাংলা ভাষা ਪੰਜਾਬੀ ગુજરાતી தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල ไทย สวัสดี ลาว "
             "བོད་སྐད မြန်မာ ភាសាខ្មែរ".split(),
    "cjk": "你好 世界 漢字 汉字 日本語 の ひらがな カタカナ ｶﾀｶﾅ ﾊﾝｶｸ 東京タワー 한국어 조선글 \u1112\u1161\u11ab 𠀀 𪚥 々 〆 ー 、 。 「引用」 ！？ "
           "１２３ ＡＢＣ ㈱ ㍿ ①".split(),
    "emoji": "😀 👍🏽 👨‍👩‍👧 ❤️ ❤ 🇫🇮🇯🇵 🏴‍☠️ 🐱 ☕️ ✨✨✨ 🤷🏿‍♀️ 1️⃣ ™ © ® ♥️ 🧑‍💻 🫠".split(),
    "numbers": "0 1 12 123 1234 12345678901234567890 3.14 -2.5e-10 1,000,000 50% $9.99 €20 £5 0x1F 0b1010 1/2 ½ ² ⅷ Ⅻ ③ "
               "2024-01-31 12:34:56 192.168.0.1 v1.2.3 1st 2nd a1b2c3 x86_64".split(),
    "code": ["def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i];\n}", "#include <vector>",
             "std::map<std::string, int> m{{\"a\", 1}};", "if x != y and not z: pass", "λx.x → y ≤ z ∀ε>0", "a && b || !c",
             "<div class=\"x\">&nbsp;</div>", "SELECT * FROM t WHERE id = 'x';", "{\"key\": [1, 2.5, null, true]}",
             "\\frac{a}{b} \\cdot \\sum_{i=0}^{n}", "https://example.com/a/b?c=d&e=%20#f", "user@example.org",
             "C:\\Users\\x\\file.txt", "/usr/bin/env", "__init__", "$HOME/${x}", "//// ---- **** ==== ....", "!@#$%^&*()",
             "print(f\"{x!r:>10}\")", "\r\n\r\n\tif:\r\n", "```python\n>>> x\n```", "a\n/\n//\n", "?!\n\n\n"],
    "punctuation": ["...", "…", "—", "–", "“quoted”", "‘single’", "«guillemets»", "¿Qué?", "¡Hola!", "(a)", "[b]", "{c}",
                    "'", "\"", "`", "'' ''", "/", "\\", "_", "~", "^", "|", "¬", "§", "¶", "•", "°C", "µm", "½", "×"],
    "spaces": [" ", "  ", "   ", "        ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "  \n\n  ", " \t ", "\u00a0",
               "\u3000", "\u2003\u2009", "\u200b", "\u200d", "\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\ufeff",
               "\u00ad", "\u180e", "\u202f", "\u1680", " " * 40, "\n" * 12, "\u2581", "\u2581\u2581", " \u2581 "],
    "control": ["\u0000", "\u0001", "\u001b[0m", "\u007f", "\u0080", "\ufffd", "\ufffe", "\ue000", "\U0010ffff", "\u0301",
                "\u0301\u0323\u0327", "e\u0301\u0323", "\u0323\u0301", "\u0f71\u0f72\u0f73", "\ufdfa", "\u2126", "\ud7a3"],
    "special": ["<s>", "</s>", "<unk>", "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
                "<|im_start|", "<0x0A>", "<0xFF>", "[INST]", "[/INST]", "<think>", "</think>", "<tool>", " <tool> ",
                "<|start_header_id|>user<|end_header_id|>\n\n", "<", "<|", "s>"],
    "repeats": ["a" * 30, "ab" * 20, "aA" * 10, "é" * 12, "=" * 50, "-" * 17, "你" * 9, "😀" * 5, "hahahaha", "0" * 25, "\u0301" * 6],
}

# Characters are drawn from these ranges too; all of them were assigned long ago.
RANGES = [(0x20, 0x7e), (0xa0, 0x24f), (0x250, 0x2af), (0x391, 0x3a1), (0x400, 0x481), (0x5d0, 0x5ea), (0x621, 0x64a),
          (0x905, 0x939), (0xe01, 0xe3a), (0x1e00, 0x1eff), (0x2010, 0x2027), (0x20a0, 0x20b5), (0x2190, 0x22ff),
          (0x2600, 0x26ff), (0x3041, 0x3096), (0x30a1, 0x30fa), (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0xff01, 0xff9f),
          (0x10400, 0x1044f), (0x1d400, 0x1d454), (0x1f300, 0x1f5ff), (0x20000, 0x2a6d6)]

# Bytes that are not UTF-8; every eighth line has some.
INVALID = ["ff", "80", "bfbf", "c3", "c328", "c0af", "e2", "e282", "e28228", "eda080", "edbfbf", "f0", "f09f", "f09f98",
           "f08080af", "f0808080", "f4908080", "f5808080", "fe", "c3c3a9", "e282c3a9", "f09f9841", "f8a1a1a1a1", "8041"]


class Draw:
    """Knuth's 64-bit linear congruential generator; the upper 31 bits count."""

    def __init__(self, line):
        self.state = (line * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def line(index, fragments):
    draw = Draw(index)
    draw.below(2)
    groups, ranges, invalid = fragments["groups"], fragments["ranges"], fragments["invalid"]
    out = b""
    for _ in range(1 + draw.below(20)):
        kind = draw.below(len(groups) + 2)
        if kind < len(groups):
            group = groups[kind]
            out += group[draw.below(len(group))].encode()
        elif kind == len(groups):
            first, last = ranges[draw.below(len(ranges))]
            for _ in range(1 + draw.below(4)):
                out += chr(first + draw.below(last - first + 1)).encode()
        elif index % 8 == 7:
            out += bytes.fromhex(invalid[draw.below(len(invalid))])
        if draw.below(2) == 0:
            out += b" "
    return out


def load():
    return json.loads((FOLDER / "fragments.json").read_text(encoding="utf-8"))


def lines(fragments=None):
    fragments = fragments or load()
    return [line(i, fragments) for i in range(COUNT)]


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    fragments = {"groups": list(GROUPS.values()), "ranges": RANGES, "invalid": INVALID}
    text = json.dumps(fragments, ensure_ascii=True, indent=0)
    (FOLDER / "fragments.json").write_text(text + "\n", encoding="utf-8")
    total = sum(len(each) for each in lines(fragments))
    print(f"fragments.json  {len(GROUPS)} groups; {COUNT} lines of {total} bytes")


if __name__ == "__main__":
    main()
