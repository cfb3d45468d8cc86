#!/usr/bin/env bash
# The arena's suites over device/cuda on a real card: conformance, growth against plain driver calls,
# graphs, peers (where there are two cards), faults at every device call, endurance, random operations against the model. Goes on after
# a failure; JSON lines, one a suite, behind a line with the environment.
#
#   tests/gpu/suites.sh BIN_DIR OUT_DIR [REVISION] [SECONDS]
#
# BIN_DIR  holds device_conformance, arena_gpu, growth_program, arena_fault, arena_endurance, arena_model
# OUT_DIR  gets suites.jsonl and a log of each suite
# SECONDS  how long random operations run, in eight processes (150). All else takes about two minutes.
set -u
bin=$(cd "$1" && pwd)
mkdir -p "$2" && out=$(cd "$2" && pwd)
revision=${3:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
seconds=${4:-150}
failed=0

suite() { # NAME LIMIT COMMAND...: the log in OUT_DIR, seconds and exit code in NAME.end
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  timeout "$limit" "$@" --gtest_output="json:$out/$name.json" >"$out/$name.log" 2>&1
  echo "$? $((SECONDS - begin)) ${*//$bin\//}" >"$out/$name.end"
}
# Alone on the card: they look at its free memory.
suite conformance 60 "$bin/device_conformance" --gtest_filter='*Cuda*'
suite growth_and_graphs 120 "$bin/arena_gpu" --gtest_filter=-'ArenaPeer*'
cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$cards" -lt 2 ] || suite peers 60 "$bin/arena_gpu" --gtest_filter='ArenaPeer*'
for shard in 0 1 2 3; do
  GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$shard suite "fault_$shard" 400 "$bin/arena_fault" --gtest_filter='*Cuda*' &
done
suite endurance 400 "$bin/arena_endurance" --gtest_filter='*Cuda*' &
for part in 0 1 2 3 4 5 6 7; do
  NEAP_PROPERTY_OPERATIONS=1000000 NEAP_PROPERTY_SEED=$((part * 10000 + 1)) NEAP_PROPERTY_SECONDS=$seconds \
    suite "model_$part" $((seconds + 60)) "$bin/arena_model" --gtest_filter='*Cuda*' &
done
wait

python3 - "$out" "$revision" <<'P' || failed=1
import json, pathlib, re, subprocess, sys

out, revision = pathlib.Path(sys.argv[1]), sys.argv[2]
gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                     capture_output=True, text=True).stdout.strip().split(", ")
lines = [{"environment": {"gpu": gpu[0], "driver": gpu[-1], "revision": revision, "command": "tests/gpu/suites.sh BIN_DIR OUT_DIR"}}]
operations = bad = 0
for end in sorted(out.glob("*.end")):
    code, seconds, command = end.read_text().strip().split(" ", 2)
    line = {"suite": end.stem, "exit": int(code), "seconds": int(seconds), "command": re.sub(r" --gtest_output=\S+", "", command)}
    report = end.with_suffix(".json")
    if report.exists():
        tests = [t for s in json.loads(report.read_text())["testsuites"] for t in s["testsuite"] if t["status"] == "RUN"]
        line["passed"] = sum(t["result"] == "COMPLETED" and "failures" not in t for t in tests)
        line["skipped"] = sum(t["result"] == "SKIPPED" for t in tests)
        line["failed"] = [t["name"] for t in tests if "failures" in t]
    log = end.with_suffix(".log").read_text(errors="replace")
    if found := re.search(r"(\d+) operations, seeds (\d+) to (\d+)", log):
        line.update(operations=int(found[1]), seeds=[int(found[2]), int(found[3])])
        operations += int(found[1])
    looks = [json.loads(l) for l in log.splitlines() if l.startswith('{"mode"')]
    if looks:
        line["growth"] = [l for l in looks if l["cycle"] in (100, 1000)]
    good = line["exit"] == 0 and line.get("skipped") == 0 and line.get("passed", 0) > 0
    bad += not good
    lines.append(line)
    print("passed" if good else "FAILED", line["suite"], f'{line["seconds"]} s', line.get("operations", ""), *line.get("failed", []))
lines.append({"operations": operations, "suites": len(lines) - 1, "failed": bad})
(out / "suites.jsonl").write_text("".join(json.dumps(l) + "\n" for l in lines))
print(f"{len(lines) - 2 - bad} suites passed, {bad} failed, {operations} random operations; {out}/suites.jsonl")
sys.exit(bad != 0)
P
exit $failed
