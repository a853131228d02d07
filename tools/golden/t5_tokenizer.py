"""Ids of ten thousand odd texts from SentencePiece and HF tokenizers, by T5's tokenizers: a tiny one and T5's own.

    scripts/setup-tokenizers && python tools/golden/t5_tokenizer.py

writes tests/golden/t5_tokenizer/: spiece.model and tokenizer.json (tools/tiny/make_t5_tokenizer.py), and ids.json:

    extras   texts that llm_lines lacks; text i is extras[i % n] + line i + extras[i // n % n]
    forms    the forms of tokenizer.json that transformers has written: a name, and JSON patches that make it of ours
    ids      FILE or FILE/FORM of `tiny` and `t5`: hashes for every ten texts, as in llm_tokenizers.py, and
             [index, ids] of every 997th; with the end token, neither cut nor padded

Lines that are not UTF-8 are decoded with errors="replace". T5's own tokenizer is the one that set-up gets.
"""

import copy
import json
import sys
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer

import llm_lines
from golden import ROOT
from llm_tokenizers import hashes, id_bytes

SOURCES = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCES / "tools/tiny"))
import make_t5_tokenizer  # noqa: E402

EXTRAS = [
    "", "", "", " ", "</s>", " </s> ", "<pad>", "<unk>", "a<unk>b", "<extra_id_5>", " <extra_id_5>  ", "<extra_id_0>",
    "<extra_id_99>.", "<extra_id_100>", "<extra_id_", "\uff1cunk\uff1e\u2603", "\uff1c/s\uff1e", "\uff1cextra_id_5\uff1e",
    "\u2581", " \u2581 \u2581a", "\u200b", "\ufeff", "\ufffd", "\u0001", "a\u0001b", "\u007f \u0085", "\t\r\n", "\r\n\u0301",
    "\u3000\u3000", "     x", "x     ", "\ufb01", "\ufb01\u0301", "\u00aa\u0301", "\u00bc\u0327", "\u00b2\u0301\u0302",
    "\u2460\u20e3", "e\u0301\u0323", "\u0301", "\u1e9b\u0323", "\u212b\u212a\u2126", "\ufdfa", "\u337f", "\u32ff",
    "\u3131\u1161\u11a8", "\uac00\u11a8", "\uff76\uff9e", "\u0958\u0301", "\U0001d400\U0001d54f", "\U0001f1eb\U0001f1ee\u00aa",
    "\u00a9\u200d\u00ae", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2603\u2603", "\u2603 \u2603", "\U0002f800",
    "0" * 40, "ab" * 40, "-" * 33, "a small red circle on a blue background", "Don't! What's \u201cthis\u201d\u2026?",
]


def forms():
    """Name, and what is done to the tokenizer.json of transformers 4.40 and later (RFC 6902)."""
    precompiled = {"op": "copy", "from": "/normalizer/normalizers/0", "path": "/normalizer"}
    metaspace = {"type": "Metaspace", "replacement": "\u2581"}

    def pre_tokenizer(**options):
        steps = [{"type": "WhitespaceSplit"}, {**metaspace, **options}]
        return {"op": "replace", "path": "/pre_tokenizer", "value": {"type": "Sequence", "pretokenizers": steps}}

    def prefix(scheme):
        return {"op": "replace", "path": "/pre_tokenizer/prepend_scheme", "value": scheme}

    strips = [{"op": "replace", "path": f"/added_tokens/{102 - extra}/{side}", "value": True}
              for extra in (0, 5, 99) for side in ("lstrip", "rstrip")]
    spaces = [{"op": "replace", "path": "/normalizer/normalizers/2/content", "value": " "},
              {"op": "remove", "path": "/normalizer/normalizers/1"}]
    return {
        "as_is": [],
        "transformers_5": [precompiled, pre_tokenizer(prepend_scheme="always", split=True)],
        "oldest": [precompiled, pre_tokenizer(add_prefix_space=True, str_rep="\u2581"), {"op": "remove", "path": "/model/type"}],
        "spaces": spaces,
        "spaces_stripped": spaces + strips,
        "no_prefix": [prefix("never")],
        "first_prefix": [prefix("first")],
    }


def patched(value, operations):
    value = copy.deepcopy(value)
    for each in operations:
        def find(path):
            place = value
            *above, last = [int(part) if part.isdigit() else part for part in path.split("/")[1:]]
            for part in above:
                place = place[part]
            return place, last
        place, last = find(each["path"])
        if each["op"] == "remove":
            del place[last]
        elif each["op"] == "copy":
            source, key = find(each["from"])
            place[last] = source[key]
        else:
            place[last] = each["value"]
    return value


def row(ids):
    return {"hashes": hashes(ids, id_bytes), "lines": [[i, ids[i]] for i in range(0, len(ids), 997)]}


def main():
    out = ROOT / "t5_tokenizer"
    make_t5_tokenizer.write(out)
    n = len(EXTRAS)
    lines = [line.decode(errors="replace") for line in llm_lines.lines()]
    texts = [EXTRAS[i % n] + line + EXTRAS[i // n % n] for i, line in enumerate(lines)]
    ids = {}
    for name, folder in (("tiny", out), ("t5", SOURCES / "build/share/wick/tokenizers/t5")):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        of_model = [model.encode(text, add_eos=True) for text in texts]
        ids[f"{name}/spiece.model"] = row(of_model)
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        for form, operations in forms().items():
            if name == "t5" and form not in ("as_is", "transformers_5"):
                continue
            fast = Tokenizer.from_str(json.dumps(patched(tokenizer, operations)))
            of_form = [encoding.ids for encoding in fast.encode_batch(texts)]
            ids[f"{name}/{form}"] = row(of_form)
            differ = sum(a != b for a, b in zip(of_form, of_model))
            print(f"{name}/{form}  {sum(map(len, of_form))} ids; {differ} of {len(texts)} texts are others in SentencePiece")
    golden = {"extras": EXTRAS, "forms": forms(), "ids": ids}
    (out / "ids.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
