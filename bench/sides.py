"""Two programs that print the same rows, Wick's and a peer's: a line of JSON each, with its name in "row"."""

import json
import subprocess


def rows_of(command):
    print("$", *command, flush=True)
    out = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True).stdout
    print(out, flush=True)
    return {row["row"]: row for row in map(json.loads, out.splitlines())}


def write(path, mine, theirs):
    both = {"wick": list(mine.values()), "pytorch": list(theirs.values())}
    path.write_text(json.dumps(both, indent=1) + "\n", encoding="utf-8")
