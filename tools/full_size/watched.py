"""A program run while the device's memory is watched, for run.py, memory.py and run_llm.py."""

import json
import shutil
import subprocess
import threading
from datetime import datetime


class DeviceMemory:
    """The memory taken while the block runs, above that at its beginning."""

    QUERY = ["nvidia-smi", "--id=0", "--query-gpu=timestamp,memory.used", "--format=csv,noheader,nounits"]

    def __enter__(self):
        self.readings = []  # seconds since 1970, MiB
        self.before = self.reading(subprocess.check_output(self.QUERY, text=True))[1]
        self.watcher = subprocess.Popen(self.QUERY + ["--loop-ms=20"], stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        return self

    @staticmethod
    def reading(text):
        at, mib = text.split(", ")
        return datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp(), int(mib)

    def read(self):
        self.readings.extend(self.reading(text) for text in self.watcher.stdout)

    def __exit__(self, *_):
        self.watcher.terminate()
        self.reader.join()

    def peak(self, since=0.0):
        """GiB"""
        return (max((mib for at, mib in self.readings if at >= since), default=self.before) - self.before) / 1024


def line(ok, text):
    print(f"{'ok' if ok else 'FAILED'}: {text}", flush=True)
    return ok


def trained(what, command, output):
    """run() of `wick train` into an empty folder: also what each step logged."""
    shutil.rmtree(output, ignore_errors=True)  # of an earlier call: a run writes over none
    ran = run(what, command + ["--output", output])
    if not ran:
        return None
    steps = [json.loads(text) for text in (output / "metrics.jsonl").read_text().splitlines()]
    return *ran, steps


def run(what, command):
    """What the program printed, and the memory that it took; None if it failed."""
    words = [str(word) for word in command]
    print("$", *words, flush=True)
    with DeviceMemory() as memory:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["nothing said"])[-1]
        line(False, f"{what}: ended with {done.returncode}: {last}")
        return None
    return done.stdout, memory
