#!/usr/bin/env python3
"""Whether pictures carry their settings both ways: Pillow and piexif read what Wick writes, as A1111's web UI would, and Wick
repeats what they write.

    python tools/picture_texts/run.py build/release/bin/wick     (pip install pillow piexif)

Ends with 1 where anything differs."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import piexif
import piexif.helper
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).resolve().parents[2]
DRAW = ["--model", "tiny", "--steps", "2", "--width", "64", "--height", "64", "--device", "cpu"]
PROMPT = "a réd fox 🦊, line\ntwo: \"quoted\""
FOREIGN = (PROMPT + "\nNegative prompt: blurred,\nugly\nSteps: 2, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 4.5, Seed: 12345, "
           "Size: 64x64, Model hash: 31e35c80fc, Model: tiny, Version: v1.10.1")
MAKER_NOTE, USER_COMMENT, EXIF = 0x927C, 0x9286, 0x8769


def generate(program, *arguments):
    subprocess.run([program, "generate", "--overwrite", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def texts_of(path):
    """`parameters` and `wick`, by other programs' means."""
    with Image.open(path) as image:
        image.load()
        if path.suffix == ".png":
            return image.text["parameters"], json.loads(image.text["wick"])
        comment = piexif.load(image.info["exif"])["Exif"][piexif.ExifIFD.UserComment]
        note = image.getexif().get_ifd(EXIF)[MAKER_NOTE]
        return piexif.helper.UserComment.load(comment), json.loads(note.removeprefix(b"wick:"))


def write_foreign(folder):
    """The web UI's ways of saving, and Pillow's own EXIF in both orders of bytes."""
    image = Image.new("RGB", (64, 64), (9, 99, 199))
    for name, text in {"latin.png": FOREIGN.replace("🦊", ""), "wide.png": FOREIGN}.items():
        for packed in (False, True):
            info = PngInfo()
            info.add_text("parameters", text, zip=packed)
            image.save(folder / f"{'packed' if packed else 'plain'}-{name}", pnginfo=info)
    comment = piexif.helper.UserComment.dump(FOREIGN, encoding="unicode")
    block = piexif.dump({"Exif": {piexif.ExifIFD.UserComment: comment}})
    for suffix in ("jpg", "webp"):
        image.save(folder / f"piexif.{suffix}", exif=block)
        for order in ("le", "be"):
            exif = Image.Exif()
            exif[EXIF] = {USER_COMMENT: b"UNICODE\0" + FOREIGN.encode(f"utf-16-{order}")}
            image.save(folder / f"pillow-{order}.{suffix}", exif=exif)


def main(program):
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_foreign(folder)
        foreign = sorted(folder.iterdir())
        for suffix in (".png", ".jpg", ".webp"):
            path = folder / f"drawn{suffix}"
            generate(program, *DRAW, "--prompt", PROMPT, "--out", str(path))
            parameters, wick = texts_of(path)
            if not parameters.startswith(PROMPT + "\nSteps: 2, Sampler: Euler, ") or wick["prompt"] != [PROMPT]:
                wrong.append(path.name)
        for path in foreign:
            out = folder / "repeated.png"
            generate(program, "--from", str(path), "--model", "tiny", "--device", "cpu", "--out", str(out))
            wick = texts_of(out)[1]
            prompt = PROMPT.replace("🦊", "") if "latin" in path.name else PROMPT
            expected = {"prompt": [prompt], "negative": "blurred,\nugly", "sampler": "dpmpp-2m-karras", "seed": [12345], "cfg": 4.5}
            if any(wick[key] != value for key, value in expected.items()):
                wrong.append(path.name)
        print(f"{3 + len(foreign)} pictures, {len(wrong)} wrong", *wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).resolve())))
