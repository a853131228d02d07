"""Safetensors files of many gigabytes, written by several threads straight from the device to a folder in memory."""

import json
from concurrent.futures import ThreadPoolExecutor

import torch

THREADS, LARGEST = 8, 8e9  # bytes of a file, unless one tensor alone has more


def size_of(tensor):
    return tensor.numel() * tensor.element_size()


def shards_of(tensors, largest):
    shards, room = [], 0
    for name, tensor in tensors.items():
        if not shards or size_of(tensor) > room:
            shards.append({})
            room = largest
        shards[-1][name] = tensor
        room -= size_of(tensor)
    return shards


def write_file(path, tensors, pool):
    """safetensors: the length of a header, a header that says where tensors lie, and the tensors."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    dtypes = {torch.bfloat16: "BF16", torch.float32: "F32"}
    for name, tensor in tensors.items():
        begin, end = end, end + size_of(tensor)
        header[name] = {"dtype": dtypes[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.unlink(missing_ok=True)  # what is mapped below keeps a file's length
    file = torch.from_file(str(path), shared=True, size=8 + len(text) + end, dtype=torch.uint8)
    head = len(text).to_bytes(8, "little") + text
    file[:len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)

    def copy(name, tensor):
        begin, end = (len(head) + offset for offset in header[name]["data_offsets"])
        file[begin:end].copy_(tensor.contiguous().reshape(-1).view(torch.uint8))

    for done in [pool.submit(copy, *item) for item in tensors.items()]:
        done.result()


def write(folder, stem, tensors, largest=LARGEST):
    """folder/stem.safetensors, or shards with an index as diffusers and transformers have them. Says how much it wrote."""
    shards = shards_of(tensors, largest)
    names = [f"{stem}-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [stem + ".safetensors"]
    with ThreadPoolExecutor(THREADS) as pool:
        for name, shard in zip(names, shards):
            write_file(folder / name, shard, pool)
    total = sum(size_of(t) for t in tensors.values())
    if len(shards) > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return f"{total / 1e9:.2f} GB in {len(names)} file{'s' if len(names) > 1 else ''}"
