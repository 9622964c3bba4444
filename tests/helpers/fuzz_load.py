"""Mutate a saved file in every way and load it: FOLDER COUNT NETWORK. Prints how many were refused and how many loaded.

Half of the mutations hit the bytes; those must be refused, or load as if nothing had happened. The other half
change what the file says about itself and give it a valid checksum, as somebody would who means harm; those may
load another model, but only of sizes that the class allows. Anything else ends this program with a traceback.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import slimilar
from helpers.small_networks import NETWORKS, images, trained
from slimilar.deploy.file_format import KEY, digest, inspect
from slimilar.errors import StoreError

HOSTILE: list[Any] = [
    None, True, -1, 0, 1, 7, 2**31, 2**63, 10**400, 1.5, float("inf"), "", "x", "stem.0", "__class__", "forward",
    [], {}, [0], [5, 3], [0, 0], [2**40], list(range(5000)), "slimilar:vgg16,width=1e9", {"a": [[]]},
]  # fmt: skip


def mutated_bytes(content: bytes, dice: random.Random) -> bytes:
    data = bytearray(content)
    at, size = dice.randrange(len(data)), dice.randrange(1, 64)
    if dice.random() < 0.5:  # the header is short beside the weights, and the interesting part
        at = dice.randrange(8 + int.from_bytes(data[:8], "little"))
    kind = dice.randrange(7)
    if kind == 0:
        data[at] ^= 1 << dice.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        del data[at : at + size]
    elif kind == 3:
        data[at:at] = dice.randbytes(size)
    elif kind == 4:
        data[at : at + size] = dice.randbytes(len(data[at : at + size]))
    elif kind == 5:
        data[:8] = dice.choice([0, 1, len(data), 2**40, 2**63, 2**64 - 1]).to_bytes(8, "little")
    else:
        other = dice.randrange(len(data))
        data[at : at + size] = data[other : other + size]
    return bytes(data)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(p for key, value in inner for p in places(value, (*path, key)))]


def mutated_info(info: dict[str, Any], paths: list[tuple[Any, ...]], dice: random.Random) -> dict[str, Any]:
    said = copy.deepcopy(info)
    path = dice.choice(paths[1:])
    holder: Any = said
    for key in path[:-1]:
        holder = holder[key]
    kind = dice.randrange(4)
    if kind == 0 and isinstance(holder, list):
        holder.append(copy.deepcopy(dice.choice(holder)))
    elif kind == 1:
        del holder[path[-1]]
    else:
        holder[path[-1]] = dice.choice(HOSTILE)
    return said


def limit_memory(extra: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    held = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + extra, held + extra))


def main(folder: Path, count: int, network: str) -> dict[str, int]:
    dice = random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    build, residual = NETWORKS[network]
    result = slimilar.prune(trained(build()), images(1), flops=0.7, residual=residual)
    good, file = slimilar.save(result, folder / "good.safetensors"), folder / "bad.safetensors"
    content, info, tensors = good.read_bytes(), dict(inspect(good).info), load_file(good)
    paths, wanted = places(info), result.model.state_dict()
    fresh = build()
    slimilar.load(good, fresh)
    limit_memory(300 * 2**20)
    counts = {"refused": 0, "same": 0, "forged": 0}
    for i in range(count):
        forged = i % 2 == 1
        if forged:
            said = mutated_info(info, paths, dice)
            said["digest"] = digest(said, tensors)
            save_file(tensors, file, {KEY: json.dumps(said)})
        else:
            file.write_bytes(mutated_bytes(content, dice))
        began = time.perf_counter()
        try:
            loaded = slimilar.load(file, fresh).state_dict()
        except StoreError:
            counts["refused"] += 1
        else:
            same = all(torch.equal(loaded[name], wanted[name]) for name in wanted)
            assert same or forged, f"mutation {i} loaded something else"
            counts["same" if same else "forged"] += 1
        assert time.perf_counter() - began < 5, f"mutation {i} took long"
    return counts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
