#!/usr/bin/env python3
"""The JSON that commands print is as docs/schemas says, and the fields that docs/json.md names are in these schemas.

Usage: check_schemas.py SOURCE_DIR NEAP_BINARY
Runs quick commands and compares their output with the schema, both ways: a field that the schema lacks is a problem, and so is one
that no command prints, unless it is in RARE. The schemas use a part of JSON Schema 2020-12: $ref, type, enum, anyOf, allOf, items,
properties, required, additionalProperties.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ALL = '["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]'
SFT = """task = "sft"
data = {train_batch_size = 8, max_prompt_length = 512, max_response_length = 512, use_dynamic_bsz = false, micro_batch_size_per_gpu = 1}
actor_rollout_ref.model.path = "MODELS/MODEL"
"""
SMALL, LARGE = "gpt-1b", "qwen2.5-7b"
RECORDINGS = "tests/data/gpu-snapshots"
SETTINGS = [{"conf": "expandable_segments:True"}, {"empty": "inference"}, {"fraction": 0.5}]
# Schema, its root, model of the job, arguments.
CASES = [
    ("plan", "plan", SMALL, ["plan", "JOB", "--gpu", "h100", "--ranks", "2", "parallel.zero_stage=auto", "parallel.tensor_model_parallel_size=auto",
                            "memory.offload=none", "device.memory=14GiB"]),
    ("plan", "plan", SMALL, ["plan", "JOB", "--gpu", "h100", "--ranks", "4", "parallel.pipeline_model_parallel_size=2"]),
    ("plan", "plan", LARGE, ["plan", "JOB", "--gpu", "rtx4090", "--host", "24GiB", f"memory.allow={ALL}"]),
    ("plan", "plan", SMALL, ["plan", "JOB", "--gpu", "t4", "--fit", "8GiB", "device.dtype=float32"]),
    ("plan", "plan", SMALL, ["plan", "JOB", "--gpu", "h100", "task=grpo", "reward.functions.0.kind=numeric",
                            "actor_rollout_ref.rollout.batch_size=8", "device.memory=5GiB"]),
    ("plan", "simulation", SMALL, ["plan", "JOB", "--gpu", "h100", "--simulate", "--ranks", "8"]),
    ("plan", "model", SMALL, ["plan", "FOLDER", "--gpu", "h100"]),
    ("replay", "replay", SMALL, ["replay", "RECORDINGS/cut-ring.pickle.gz", "--capacity", "300MiB", "--settings", "SETTINGS"]),
    ("replay", "replay", SMALL, ["replay", "RECORDINGS/stacks.pickle.gz"]),
    ("replay", "replay", SMALL, ["replay", "RECORDINGS/phases.pickle.gz", "--capacity", "16GiB", "--settings", "SETTINGS"]),
    ("report", "report", SMALL, ["report", "RECORDINGS/phases.pickle.gz", "--at", "peak", "--replay", "LAST"]),
    ("report", "report", SMALL, ["report", "RUN"]),
    ("run", "run", SMALL, ["run", "--tag", "kv", "--", sys.executable, "HOOKED"]),
    ("formulas", "sheet", SMALL, ["plan", "--formulas", "JOBS/sft.toml", "--run", "RUN"]),
    ("formulas", "file", SMALL, ["plan", "--formulas", "EXAMPLES/plan/bloom-7b.toml"]),
]
# A program under the hook, which writes its own numbers.
HOOKED = """import ctypes, os
hook = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])
block, text, length = ctypes.c_void_p(), ctypes.create_string_buffer(1 << 16), ctypes.c_size_t()
hook.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(4096))
hook.neap_stats_json(text, ctypes.c_size_t(len(text)), ctypes.byref(length))
open("process.json", "wb").write(text.value)
"""
# The run of the last case: layers and optimizer states are offloaded, to a disk.
TRAIN = ["train", "JOBS/sft.toml", "trainer.total_training_steps=1", "data.val_files=[]", "device.memory=52MiB",
         "memory.optimizer_offload=nvme", f"memory.allow={ALL}"]
RARE = {"divergence.event", "divergence.what", "divergence.reason"}  # recordings whose addresses are not reproduced


class Checker:
    def __init__(self, schema):
        self.schema, self.seen, self.problems = schema, set(), []

    def named(self, name):
        """A definition with the properties of those that it includes."""
        own = self.schema["$defs"][name]
        properties = {field: (name, value) for field, value in own.get("properties", {}).items()}
        required = list(own.get("required", []))
        for included in own.get("allOf", []):
            more, needed = self.named(included["$ref"].rpartition("/")[2])
            properties.update(more)
            required += needed
        return properties, required

    def matches(self, value, kind):
        return {"object": isinstance(value, dict), "array": isinstance(value, list), "string": isinstance(value, str),
                "boolean": isinstance(value, bool), "integer": isinstance(value, int) and not isinstance(value, bool),
                "number": isinstance(value, (int, float)) and not isinstance(value, bool), "null": value is None}[kind]

    def check(self, value, schema, where):
        if "anyOf" in schema:
            null = value is None and {"type": "null"} in schema["anyOf"]
            if not null:
                self.check(value, next(each for each in schema["anyOf"] if each != {"type": "null"}), where)
            return
        if "$ref" in schema:
            self.check_object(value, schema["$ref"].rpartition("/")[2], where)
            return
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and not any(self.matches(value, kind) for kind in kinds):
            self.problems.append(f"{where}: {json.dumps(value)[:60]} is not of type {' or '.join(kinds)}")
        elif "enum" in schema and value not in schema["enum"]:
            self.problems.append(f"{where}: {json.dumps(value)[:60]} is not one of {', '.join(schema['enum'])}")
        elif isinstance(value, list):
            for each in value:
                self.check(each, schema["items"], f"{where}[]")
        elif isinstance(value, dict):
            for key, each in value.items():
                self.check(each, schema["additionalProperties"], f"{where}.{key}")

    def check_object(self, value, name, where):
        if not isinstance(value, dict):
            self.problems.append(f"{where}: {json.dumps(value)[:60]} is not a {name}")
            return
        properties, required = self.named(name)
        self.problems += [f"{where} lacks {field}, which the schema requires" for field in required if field not in value]
        for field, each in value.items():
            if field not in properties:
                self.problems.append(f"{where}.{field} is not in the schema's {name}")
                continue
            owner, schema = properties[field]
            self.seen.add((owner, field))
            self.check(each, schema, f"{where}.{field}")

    def unseen(self):
        for name, own in self.schema["$defs"].items():
            yield from (f"{name}.{field}" for field in own.get("properties", {}) if (name, field) not in self.seen)


def unknown_fields(root, schemas):
    """Fields in a row of docs/json.md that the row's schema lacks."""
    rows = set()
    for line in (root / "docs" / "json.md").read_text().splitlines():
        cells = line.split("|")
        if line.startswith("|") and (file := re.search(r"schemas/(\w+)\.json", line)):
            rows.add(file[1])
            known = {field for own in schemas[file[1]]["$defs"].values() for field in own.get("properties", {})}
            wrong = [name for name in re.findall(r"`(\w+)`", cells[3]) if name not in known]
            wrong += [name for name in re.findall(r"`(\w+)`", cells[2]) if name not in schemas[file[1]]["$defs"]]
            yield from (f"docs/json.md: docs/schemas/{file[1]}.json has no {name}" for name in wrong)
    yield from (f"docs/json.md has no row for docs/schemas/{name}.json" for name in schemas if name not in rows)


def run(command, folder):
    environment = dict(os.environ, NEAP_HOOK_DEVICE="host:64MiB")
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"`{' '.join(map(str, command))}` exits {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def outputs(root, binary):
    """Schema, root and parsed output of every case, then of the lines of a run's phases.jsonl."""
    models = root / "examples" / "plan" / "models"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "settings.jsonl").write_text("".join(json.dumps(each) + "\n" for each in SETTINGS))
        shutil.copytree(root / "examples" / "reviews", folder / "reviews")
        words = {"JOB": folder / "job.toml", "RECORDINGS": root / RECORDINGS, "SETTINGS": folder / "settings.jsonl",
                 "JOBS": folder / "reviews", "RUN": folder / "run", "LAST": folder / "last.json",
                 "EXAMPLES": root / "examples", "HOOKED": folder / "hooked.py"}
        words["HOOKED"].write_text(HOOKED)

        def neap(arguments):
            return run([binary, *("/".join(str(words.get(part, part)) for part in word.split("/")) for word in arguments)], folder)

        neap([*TRAIN, f"trainer.default_local_dir={words['RUN']}"])
        for schema, start, model, arguments in CASES:
            words["FOLDER"] = models / model
            words["JOB"].write_text(SFT.replace("MODELS", str(models)).replace("MODEL", model))
            text = neap([arguments[0], "--json", *arguments[1:]])
            if schema == "replay":
                words["LAST"].write_text(text)
            yield schema, start, " ".join(arguments), json.loads(text)
        yield "run", "process", "neap_stats_json", json.loads((folder / "process.json").read_text())
        for line in (words["RUN"] / "phases.jsonl").read_text().splitlines():
            yield "report", "phase_run", "phases.jsonl", json.loads(line)


def main():
    root, binary = Path(sys.argv[1]).resolve(), str(Path(sys.argv[2]).resolve())
    problems = []
    schemas = {file.stem: json.loads(file.read_text()) for file in sorted((root / "docs" / "schemas").glob("*.json"))}
    checkers = {name: Checker(schema) for name, schema in schemas.items()}
    problems += unknown_fields(root, schemas)
    for schema, start, what, value in outputs(root, binary):
        checkers[schema].check_object(value, start, what)
    for each in SETTINGS:
        checkers["replay"].check_object(each, "setting", "a line of settings")
    for name, checker in checkers.items():
        problems += checker.problems
        problems += [f"docs/schemas/{name}.json: no command prints {field}" for field in checker.unseen() if field not in RARE]
    print("\n".join(dict.fromkeys(problems)) or f"{len(CASES)} outputs are as {len(checkers)} schemas say")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
