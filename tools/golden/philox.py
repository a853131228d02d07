"""The random numbers of a training run (docs/replay.md): Philox4x32-10 by seed, stream and position."""

import numpy as np
import torch

STREAMS = ["init", "noise", "timestep", "shuffle", "latent", "sampler", "crop", "test", "caption", "dropout"]
LOW = np.uint64(0xFFFFFFFF)


def philox(seed, stream, positions):
    """Four words of 32 bits at each position: [N, 4], held in uint64."""
    positions = np.asarray(positions, np.uint64)
    c = [positions & LOW, positions >> np.uint64(32), np.full_like(positions, stream), np.zeros_like(positions)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        k = [np.uint64(key) for key in keys]
        c = [(b >> np.uint64(32)) ^ c[1] ^ k[0], b & LOW, (a >> np.uint64(32)) ^ c[3] ^ k[1], a & LOW]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1)


class Stream:
    def __init__(self, seed, name, position=0):
        self.seed, self.stream, self.position = seed, STREAMS.index(name), position

    def words(self, blocks):
        first, self.position = self.position, self.position + blocks
        return philox(self.seed, self.stream, np.arange(first, first + blocks))

    def uniform(self, *shape):
        """Of [0, 1), in multiples of 2^-24."""
        count = int(np.prod(shape))
        words = self.words((count + 3) // 4).reshape(-1)[:count]
        return torch.from_numpy(((words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape))

    def normal(self, *shape):
        """Box and Muller's, in float64 and rounded to float32: words 0 and 1 give two numbers, words 2 and 3 two more."""
        count = int(np.prod(shape))
        words = self.words((count + 3) // 4).reshape(-1, 2).astype(np.float64)
        radius = np.sqrt(-2 * np.log((words[:, 0] + 1) * 2.0**-32))
        angle = 2 * np.pi * words[:, 1] * 2.0**-32
        both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        return torch.from_numpy(both.reshape(-1)[:count].astype(np.float32).reshape(shape))

    def below(self, bound):
        """An integer, of one block."""
        words = self.words(1)[0]
        return ((int(words[1]) << 32 | int(words[0])) * bound) >> 64

    def shuffle(self, items):
        for left in range(len(items), 1, -1):
            i = self.below(left)
            items[left - 1], items[i] = items[i], items[left - 1]


class Samples:
    """Those of a batch, whose first has the number `first` in the run: each has a stretch of each stream."""

    def __init__(self, seed, first, count):
        self.seed, self.numbers = seed, range(first, first + count)

    def streams(self, name):
        return [Stream(self.seed, name, number << 32) for number in self.numbers]

    def normal(self, name, *shape):
        return torch.cat([stream.normal(1, *shape) for stream in self.streams(name)])


def steps_of(pictures, size):
    """The pictures of a bucket in a row as steps, the last of which is filled from the first ones on."""
    return [[pictures[i % len(pictures)] for i in range(begin, begin + size)] for begin in range(0, len(pictures), size)]


def numbered(steps, count):
    """The first `count`, each with the number of its first sample."""
    first, all_of_it = 0, []
    for step in steps[:count]:
        all_of_it.append((first, step))
        first += len(step)
    return all_of_it


def named_seed(seed, name):
    """The seed xor FNV-1a of the name."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return seed ^ value
