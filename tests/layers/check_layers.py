#!/usr/bin/env python3
"""Arrows point down only: checks includes and links of every room against the order in docs/architecture.md.

Usage: check_layers.py [SOURCE_DIR]. Prints each breach as file:line and exits 1 if there is any.
"""
import re
import sys
from pathlib import Path

# Each room and the rooms it may know. What is not named here may not be included.
BELOW = {
    "base": set(),
    "spec": {"base"},
    "step": {"base", "spec"},
    "device": {"base"},
    "trace": {"base"},
    "arena": {"base", "device", "trace"},
    "cache": {"base", "device", "trace", "arena"},
    "plan": {"base", "spec", "step", "device", "trace", "arena", "cache"},
    "replay": {"base", "device", "trace", "arena", "cache", "plan"},
    "report": {"base", "device", "trace", "arena", "cache", "plan", "replay"},
    "bench": {"base", "device", "trace", "arena", "cache", "plan", "replay"},
    "hook": {"base", "device", "trace", "arena"},
}
CORE = {"base", "spec", "step", "device", "trace", "arena", "cache", "plan", "replay", "report"}
BELOW["torch"] = CORE
BELOW["model"] = CORE | {"torch"}
BELOW["parallel"] = BELOW["model"] | {"model"}
BELOW["train"] = BELOW["parallel"] | {"parallel"}
BELOW["rollout"] = BELOW["train"] | {"train"}
BELOW["rlhf"] = BELOW["rollout"] | {"rollout"}
BELOW["cli"] = BELOW["rlhf"] | {"rlhf", "hook", "bench"}

# Outside headers that belong to certain rooms only.
TORCH_ROOMS = {"torch", "model", "parallel", "train", "rollout", "rlhf", "cli"}
FOREIGN = [
    (re.compile(r"^(ATen|c10|torch)/(?!runtime|residency|transient|torch_)"), TORCH_ROOMS, "libtorch"),
    (re.compile(r"^(cuda|cuda_runtime|cuda_runtime_api|nccl|cublas.*|cudnn.*)\.h$"), set(), "the CUDA toolkit"),
    (re.compile(r"^Python\.h$"), set(), "Python"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LINK = re.compile(r"neap::([a-z_]+)")


def check(root: Path) -> list[str]:
    breaches = []
    source = root / "src"
    rooms = [d for d in sorted(source.iterdir()) if d.is_dir()]
    for room in rooms:
        if room.name not in BELOW:
            breaches.append(f"src/{room.name}: not a room of docs/architecture.md")
            continue
        allowed = BELOW[room.name] | {room.name}
        for file in sorted(room.rglob("*")):
            relative = file.relative_to(root)
            if file.suffix in {".h", ".cpp", ".c", ".cu"}:
                for number, line in enumerate(file.read_text().splitlines(), 1):
                    match = INCLUDE.match(line)
                    if not match:
                        continue
                    name = match.group(2)
                    first = name.split("/")[0]
                    if match.group(1) == '"' and first in BELOW and first not in allowed:
                        breaches.append(f"{relative}:{number}: {room.name} may not know {first} ({name})")
                    for pattern, rooms_allowed, what in FOREIGN:
                        if match.group(1) == "<" and pattern.match(name) and room.name not in rooms_allowed:
                            breaches.append(f"{relative}:{number}: {room.name} may not use {what} ({name})")
            elif file.name == "CMakeLists.txt" and room.name != "cli":
                for number, line in enumerate(file.read_text().splitlines(), 1):
                    for target in LINK.findall(line.split("#")[0]):
                        if target in BELOW and target not in allowed:
                            breaches.append(f"{relative}:{number}: {room.name} may not link {target}")
    return breaches


def self_test(root: Path) -> None:
    """The check must be able to fail: a made-up breach is found."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        bad = Path(folder) / "src" / "base"
        bad.mkdir(parents=True)
        (bad / "x.cpp").write_text('#include "arena/arena.h"\n#include <ATen/ATen.h>\n')
        found = check(Path(folder))
        assert len(found) == 2, found


if __name__ == "__main__":
    top = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    self_test(top)
    problems = check(top)
    for problem in problems:
        print(problem)
    print(f"layers: {len(problems)} breaches in {len(list((top / 'src').rglob('*.cpp')))} sources")
    sys.exit(1 if problems else 0)
