#!/usr/bin/env python3
"""Which kernels a run takes on a card, with NVRTC and without, and whether its plan says the same.

usage: choice.py PACKAGE_DIR OUT_DIR

Each case is three steps of examples/reviews/sft.toml. Writes OUT_DIR/choice.jsonl, one line a case; exits 1 if one is not as expected.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import plan_check  # noqa: E402

MOST_OFF = 0.2  # percent of a phase's planned memory
NOWHERE = "/nowhere/libnvrtc.so.13"
NO_COMPILER = {"NEAP_LIBNVRTC": NOWHERE}


def run(neap, reviews, folder, words, environment):
    done = subprocess.run([neap, "train", reviews / "sft.toml", "trainer.total_training_steps=3", "trainer.save_freq=-1",
                           f"trainer.default_local_dir={folder}", *words], capture_output=True, text=True, timeout=60,
                          env=dict(os.environ, NEAP_PROGRESS="off", **environment))
    line = {"exit": done.returncode, "words": words, "environment": environment, "plan_text": "kernels                libtorch's: " in done.stdout,
            "stderr": [text for text in done.stderr.splitlines() if "kernels" in text]}
    if done.returncode == 0:
        plan, phases = plan_check.compare(folder, plan_check.json_lines(folder / "metrics.jsonl"))
        line |= {"kernels": plan["kernels"], "reason": plan["no_own_kernels"], "off": max(abs(p["percent"]) for p in phases)}
    return line


def damage(cache, change):
    files = list(cache.rglob("*.cubin"))
    for file in files:
        file.write_bytes(change(file.read_bytes()))
    return len(files)


def main():
    package, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    neap, reviews, failures = package / "bin" / "neap", package / "examples" / "reviews", 0
    with tempfile.TemporaryDirectory() as work, open(out / "choice.jsonl", "w") as log:
        work = pathlib.Path(work)
        cache, no_folder = work / "cache", work / "file"
        no_folder.write_text("in the folder's place")

        def case(name, expected, words=(), said=None, **environment):
            nonlocal failures
            line = {"case": name, **run(neap, reviews, work / name, list(words), {"XDG_CACHE_HOME": str(cache), **environment})}
            log.write(json.dumps(line) + "\n")
            log.flush()
            good = line["exit"] == 0 and line["kernels"] == expected and line["off"] <= MOST_OFF if expected else line["exit"] == 1
            if said:
                good = good and any(said in text for text in line["stderr"]) and line["plan_text"] == (expected == "libtorch")
            failures += not good
            print(f"{'ok' if good else 'FAILED'} {name}" + ("" if good else f": {json.dumps(line)}"), flush=True)

        case("compiled", "neap")
        case("from the disk", "neap", ["device.kernels=neap"])
        damage(cache, lambda cubin: cubin[: len(cubin) // 2])
        case("damaged", "neap")
        damage(cache, lambda cubin: b"")
        case("emptied", "neap", ["device.kernels=neap"])
        case("no cache", "neap", XDG_CACHE_HOME=str(no_folder))
        case("libtorch", "libtorch", ["device.kernels=libtorch"])
        case("no compiler", "libtorch", said="libtorch's kernels run: NVRTC does not load: " + NOWHERE, **NO_COMPILER)
        case("another library", "libtorch", said="libtorch's kernels run: NVRTC has no ", NEAP_LIBNVRTC="libm.so.6")
        case("required", None, ["device.kernels=neap"], **NO_COMPILER)
    print(f"choice: {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
