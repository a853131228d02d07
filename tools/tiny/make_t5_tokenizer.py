#!/usr/bin/env python3
"""Writes a small T5 tokenizer: a unigram model of less than a thousand pieces, with T5's character map.

    make_t5_tokenizer.py DIR    writes DIR/spiece.model and DIR/tokenizer.json, either of which is enough

Learnt from the captions of draw.py, the words of make_tokenizer.py and the chats in data/tiny-pirate. Ids are numbered as
T5's are: <pad>, </s>, <unk>, the pieces, and (in tokenizer.json alone) <extra_id_99> to <extra_id_0>. Needs the packages
of tools/golden/requirements.txt.
"""

import io
import json
import pathlib
import sys

import sentencepiece
from transformers import T5TokenizerFast

import draw
from make_tokenizer import EXTRA

ROOT = pathlib.Path(__file__).resolve().parents[2]
PIECES = 1000


def corpus():
    chats = (ROOT / "data/tiny-pirate/train.jsonl").read_text(encoding="utf-8").splitlines()
    said = [message["content"] for chat in chats for message in json.loads(chat)["messages"]]
    return [*draw.all_captions(), *EXTRA.split() * 20, *said]


def write(folder, normalization="nmt_nfkc"):
    """Writes both files and returns the number of pieces, without the extra ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, model_type="unigram", vocab_size=PIECES,
        normalization_rule_name=normalization, required_chars="".join(map(chr, range(0x21, 0x7f))), hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, num_threads=1)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spiece.model"
    path.write_bytes(model.getvalue())
    fast = T5TokenizerFast(vocab_file=str(path), add_prefix_space=True, legacy=True)
    fast.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).vocab_size()


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_t5_tokenizer.py DIR")
    print(f"{write(pathlib.Path(sys.argv[1]))} pieces")


if __name__ == "__main__":
    main()
