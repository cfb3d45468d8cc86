#!/usr/bin/env bash
# Everything of the arena that needs a GPU, in one go: the device conformance suite over the card,
# then the speed table. Goes on after a failure and says so at the end.
#
# usage: tests/gpu/arena.sh BIN_DIR OUT_DIR [REVISION]
#   BIN_DIR holds bench_arena and device_conformance; OUT_DIR gets arena.jsonl and logs.
set -u
bin=$(cd "$1" && pwd)
mkdir -p "$2" && out=$(cd "$2" && pwd)
revision=${3:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
failed=()
step() { # NAME SECONDS COMMAND...
  local name=$1 seconds=$2
  shift 2
  echo "== $name"
  timeout "$seconds" "$@" || failed+=("$name ($?)")
}
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader || failed+=("nvidia-smi")
step conformance 100 "$bin/device_conformance" --gtest_filter='*Cuda*:*cuda*' --gtest_brief=1
bench() {
  (cd "$bin" && ./bench_arena --only "$1" --cycles 20 --revision "$revision") >>"$out/arena.jsonl"
}
export bin out revision
export -f bench
for case in lookup discard hand_over backup exchange; do
  step "$case" 120 bash -c "bench $case"
done
if [ ${#failed[@]} -ne 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all done: $out/arena.jsonl"
