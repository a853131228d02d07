#!/usr/bin/env python3
"""Whether kernels were compiled to the same machine code: compares two builds of libwick-cuda.so, or object files of it.

    python tools/same_sass/run.py BEFORE AFTER... [--part] [--only REGEX] [--write FILE]

Prints which kernels changed, appeared and went, with registers, bytes of stack and of shared memory, and instructions that
spill. Kernels that have another name but the code of one that went are listed as renamed. --only takes the kernels whose
name matches. With --part AFTER is some object files, so nothing is missing from it. --write keeps what was read of AFTER, and
such a FILE may stand for BEFORE. Needs cuobjdump of CUDA 13 or newer on the PATH. Ends with 1 where code differs."""
import argparse
import collections
import hashlib
import json
import re
import subprocess

# Kernels of anonymous namespaces are named after their file's path and content.
PLACE = re.compile(r"\d+_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}")


def dump(flag, file):
    return subprocess.run(["cuobjdump", flag, file], check=True, capture_output=True, text=True).stdout


def kernels_of(files):
    """Demangled name -> sorted [hash, use] of the kernels that have it: files may use a name each."""
    code, use = {}, {}
    for file in files:
        if file.endswith(".json"):
            with open(file) as f:
                return json.load(f)
        for part in re.split(r"\n\t*\s*Function : ", dump("-sass", file))[1:]:
            name, _, body = part.partition("\n")
            body = PLACE.sub("here", body.partition("\n\t\t......")[0])
            spills = len(re.findall(r"\b(?:STL|LDL)\b", body))
            code[name.strip()] = (hashlib.sha256(body.encode()).hexdigest()[:16], f"{spills} spills" if spills else "")
        for name, registers, stack, shared in re.findall(r"Function (\S+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)",
                                                         dump("-res-usage", file)):
            use[name] = f"{registers} registers, stack {stack}, shared {shared}"
    demangled = subprocess.run(["c++filt"], input="\n".join(code), check=True, capture_output=True, text=True).stdout.split("\n")
    kernels = collections.defaultdict(list)
    for (name, (digest, spills)), plain in zip(code.items(), demangled):
        plain = re.sub(r"\(anonymous namespace\)::|wick::|^void ", "", plain)
        plain = re.sub(r"\((\w+)\)(?=\d)", r"\1 ", plain)  # enums
        kernels[re.sub(r"\(.*", "", plain)].append([digest, ", ".join(filter(None, [use.get(name, ""), spills]))])
    return {name: sorted(found) for name, found in kernels.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("before")
    parser.add_argument("after", nargs="+")
    parser.add_argument("--part", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--write")
    arguments = parser.parse_args()
    before, after = kernels_of([arguments.before]), kernels_of(arguments.after)
    if arguments.write:
        with open(arguments.write, "w") as f:
            json.dump(after, f)
    keep = re.compile(arguments.only)
    before, after = ({k: v for k, v in each.items() if keep.search(k)} for each in (before, after))

    hashes = lambda found: [digest for digest, _ in found]
    by_hash = {digest: name for name in before.keys() - after.keys() for digest in hashes(before[name])}
    same, renamed, differ = 0, {}, 0
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, []), after.get(name, [])
        if hashes(old) == hashes(new):
            same += len(new)
        elif not old and all(digest in by_hash for digest in hashes(new)):
            renamed[name] = by_hash[new[0][0]]
    for name, was in renamed.items():
        print(f"renamed  {was}\n         {name}")
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, []), after.get(name, [])
        if hashes(old) == hashes(new) or name in renamed or name in renamed.values() or (arguments.part and not new):
            continue
        differ += 1
        uses = [use for _, use in old], [use for _, use in new]
        how = "went    " if not new else "appeared" if not old else "changed "
        print(f"{how} {name}")
        for use, sign in ((uses[0], "-"), (uses[1], "+")):
            if uses[0] != uses[1] or sign == "+":
                for line in use:
                    print(f"       {sign} {line}")
    print(f"{same} kernels are the same, {len(renamed)} renamed, {differ} differ")
    raise SystemExit(differ > 0)


if __name__ == "__main__":
    main()
