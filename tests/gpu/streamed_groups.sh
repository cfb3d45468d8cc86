#!/usr/bin/env bash
# Streamed training in groups of micro-batches, with an earlier package and with this one.
# usage: streamed_groups.sh OUT_DIR PACKAGE_DIR [BEFORE_PACKAGE_DIR] [--rehearse]
#
# Writes OUT_DIR/{before,after}/ceilings.jsonl: losses have to be those of the largest ceiling bit by bit, peaks within 0.2 % of the
# plan; the table shows planned and measured seconds of a step. An H200 with 120 GiB of host memory, about 9 minutes a package.
set -euo pipefail
out=${1:?usage: streamed_groups.sh OUT_DIR PACKAGE_DIR [BEFORE_PACKAGE_DIR] [--rehearse]}
after=${2:?}
before="" rehearse=()
for word in "${@:3}"; do
  if [[ $word == --rehearse ]]; then rehearse=(--rehearse); else before=$word; fi
done
here=$(cd "$(dirname "$0")" && pwd)
failed=0
for side in ${before:+before} after; do
  cases=(--case lora --case full6b --case full3b-groups --case full1b-groups)
  mkdir -p "$out/$side"
  python3 "$here/ceilings.py" "$out/$side" "${!side}" "${cases[@]}" --deterministic --steps 3 --minutes 8 "${rehearse[@]}" || failed=1
done
exit $failed
