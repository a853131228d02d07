"""Two programs that print the same rows, Wick's and a peer's: a line of JSON each, with its name in "row"; or programs that
are asked for one row after the other."""

import json
import os
import subprocess
import threading


class Side:
    """A program that says what it is, then answers each line with a list of times."""

    def __init__(self, command, threads):
        self.process = subprocess.Popen([str(word) for word in command], env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        self.name = self.process.stdout.readline().strip()

    def measure(self, row):
        print(*row, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def rows_of(command):
    print("$", *command, flush=True)
    out = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True).stdout
    print(out, flush=True)
    return {row["row"]: row for row in map(json.loads, out.splitlines())}


def lines_of(command, limit):
    """The lines of JSON that a program prints in so many seconds, and what went wrong or None."""
    print("$", *command, flush=True)
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(limit, process.kill)
    timer.start()
    rows = []
    for text in process.stdout:
        print(text, end="", flush=True)
        if text.startswith("{"):
            rows.append(json.loads(text))
    code, late = process.wait(), not timer.is_alive()
    timer.cancel()
    return rows, f"not done in {limit:.0f} s" if late else f"ended with {code}" if code else None


def write(path, mine, theirs):
    both = {"wick": list(mine.values()), "pytorch": list(theirs.values())}
    path.write_text(json.dumps(both, indent=1) + "\n", encoding="utf-8")
