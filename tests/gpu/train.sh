#!/usr/bin/env bash
# The three stages of examples/reviews on a GPU machine, from a packaged folder (scripts/package), then the same PPO
# with everything resident under the same ceiling, which must fail with exit code 3. Goes on after a failure; writes JSON
# lines with the environment.
# Usage: tests/gpu/train.sh PACKAGE_DIR OUT_DIR [KEY=VALUE ...]
set -uo pipefail
package=$1
out=$2
shift 2
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$package/examples" "$work/"
cd "$work"
neap=$package/bin/neap
failures=0

environment=$("$neap" doctor --json --quick | python3 -c '
import json, sys
d = json.load(sys.stdin)
gpu = [x for x in d["devices"] if "H" in x.get("name", "") or x["ordinal"] >= 0][:1]
print(json.dumps({"version": d["neap"]["version"], "kernel": d["system"]["kernel"], "gpu": gpu[0].get("name") if gpu else None}))')
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)

stage() {  # name, expected exit code, arguments
  local name=$1 expected=$2 start code
  shift 2
  echo "== $name: neap $*"
  start=$(date +%s.%N)
  timeout 240 "$neap" "$@" >"$out/$name.out" 2>"$out/$name.err"
  code=$?
  local seconds
  seconds=$(python3 -c "import time; print(round(time.time() - $start, 1))")
  tail -n 25 "$out/$name.out"
  if [ "$code" != "$expected" ]; then
    failures=$((failures + 1))
    echo "$name: exit $code, expected $expected"
    tail -n 15 "$out/$name.err"
  fi
  python3 - "$name" "$code" "$expected" "$seconds" "$driver" "$environment" "neap $*" >>"$out/train.jsonl" <<'P'
import json, sys
name, code, expected, seconds, driver, environment, command = sys.argv[1:]
print(json.dumps({"suite": "train", "case": name, "exit": int(code), "expected": int(expected), "seconds": float(seconds),
                  "driver": driver, **json.loads(environment), "command": command}))
P
}

stage sft 0 train examples/reviews/sft.toml "$@"
stage reward 0 train examples/reviews/reward.toml "$@"
stage ppo 0 train examples/reviews/ppo.toml "$@"
stage ppo_all_resident 3 train examples/reviews/ppo.toml memory.offload=none trainer.default_local_dir=output/all "$@"
for f in output/reviews/ppo/report.html output/reviews/ppo/metrics.jsonl output/reviews/ppo/phases.jsonl output/reviews/ppo/plan.json; do
  if [ -e "$f" ]; then cp "$f" "$out/ppo_$(basename "$f")"; fi
done
echo "train: $((4 - failures)) passed, $failures failed"
exit $((failures > 0))
