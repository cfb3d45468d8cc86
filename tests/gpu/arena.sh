#!/usr/bin/env bash
# Everything of the arena that needs a GPU, in one go: the device conformance suite over the card,
# then the speed table. Goes on after a failure and says so at the end.
#
# usage: tests/gpu/arena.sh BIN_DIR OUT_DIR [REVISION]
#   BIN_DIR holds bench_arena, libneap_hook.so and device_conformance; OUT_DIR gets arena.jsonl.
#   DISK_FOLDER in the environment: where the disk rows write (default TMPDIR or /tmp).
set -u
bin=$(cd "$1" && pwd)
mkdir -p "$2" && out=$(cd "$2" && pwd)
revision=${3:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
disk=${DISK_FOLDER:-${TMPDIR:-/tmp}}
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
  (cd "$bin" && ./bench_arena --device cuda --only "$1" --hook ./libneap_hook.so --disk-folder "$disk" \
    --revision "$revision") >>"$out/arena.jsonl"
}
export bin out revision disk
export -f bench
for case in host_memory lookup region hook discard_kept discard_released discard_many hand_over backup exchange disk; do
  step "$case" 120 bash -c "bench $case"
done
if [ ${#failed[@]} -ne 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all done: $out/arena.jsonl"
