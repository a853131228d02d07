"""What of the tiny SDXL today's diffusers and transformers save in another form: tokenizer.json in place of vocab.json and
merges.txt, and -Infinity in a scheduler's config.

    python tools/golden/sdxl_today.py      writes tests/golden/sdxl_today/

Made by diffusers 0.42.1 and transformers 5.23, which requirements.txt does not name (so make_all.sh leaves it alone); what
else they save is as in sdxl/.
"""

import json
import shutil
import tempfile
from pathlib import Path

from diffusers import DPMSolverMultistepScheduler
from transformers import CLIPTokenizer

from golden import ROOT

OUT = ROOT / "sdxl_today"


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for name in ["tokenizer", "tokenizer_2"]:
        with tempfile.TemporaryDirectory() as folder:
            CLIPTokenizer.from_pretrained(ROOT / "sdxl" / name).save_pretrained(folder)
            (OUT / name).mkdir(parents=True)
            for file in sorted(Path(folder).iterdir()):
                text = json.loads(file.read_text())
                (OUT / name / file.name).write_text(json.dumps(text, ensure_ascii=False, separators=(",", ":")) + "\n")
    DPMSolverMultistepScheduler.from_pretrained(ROOT / "sdxl/scheduler").save_pretrained(OUT / "scheduler")


if __name__ == "__main__":
    main()
