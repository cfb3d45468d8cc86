#!/usr/bin/env bash
# All that is measured of several GPUs of one machine, on as many as there are: what tests/gpu/parallel.sh asserts (two ranks), every
# way to divide one model (ranks.py: 1.5B, then 7B), rollouts in a placement of their own (rollout_ranks.py), slices on the host and on disk, and
# FSDP2 on the same work. Goes on after a failure; the closing line counts parts.
#
#   tests/gpu/ranks.sh PACKAGE_DIR OUT_DIR [--ranks N] [--minutes M] [--only REGEX] [--rehearse]
#
# PACKAGE_DIR  scripts/package's folder; parallel.sh needs parallel_collectives in its bin/ and is left out where it is not there
# OUT_DIR      gets each part's JSON lines and log
# --ranks      default: all GPUs that nvidia-smi lists
# --minutes    of each part but parallel.sh: after it no further run starts (default 8)
# --only       parts by name: efficiency-1.5b, efficiency-7b (ZeRO-3 against one GPU, goal 0.97), ways-1.5b, ways-7b, ways-host-disk, rollouts,
#              rollouts-stages, fsdp2, fsdp2-7b, parallel
# --rehearse   tiny models on CPU ranks over MPI, without parallel.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/gpu/parts.sh
. "$here/parts.sh"
minutes=8
begin_parts "$@"
python() { # NAME SCRIPT WORDS...
  local name=$1 script=$2
  shift 2
  part "$name" python3 "$script" "$out" "$package" --ranks "$ranks" --minutes "$minutes" ${rehearse[@]+"${rehearse[@]}"} "$@"
}

python efficiency-1.5b "$here/ranks.py" --ways alone zero3 --least 0.97
# All layers are recomputed, so that one GPU holds the job.
python efficiency-7b "$here/ranks.py" --models qwen2.5-7b --ways alone zero3 --least 0.97 --keys actor_rollout_ref.model.activation_checkpointing=full
python ways-1.5b "$here/ranks.py"
python ways-host-disk "$here/ranks.py" --ways alone zero3 zero3-host zero3-disk pipeline pipeline-host
python ways-7b "$here/ranks.py" --models qwen2.5-7b --ways data zero1 zero2 zero3 tensor rows pipeline context auto
python rollouts "$here/rollout_ranks.py"
python rollouts-stages "$here/rollout_ranks.py" --stages 2
if { selected fsdp2 || selected fsdp2-7b; } && has_modules "torch transformers"; then
  part fsdp2 python3 "$here/../../bench/ranks/fsdp2.py" "$out" --ranks 1 "$ranks" ${rehearse[@]+"${rehearse[@]}"}
  part fsdp2-7b python3 "$here/../../bench/ranks/fsdp2.py" "$out" --models qwen2.5-7b --ranks "$ranks" --recompute yes ${rehearse[@]+"${rehearse[@]}"}
else
  leave_out fsdp2 "python3 has no torch with transformers"
  leave_out fsdp2-7b "python3 has no torch with transformers"
fi
# Last: about fifteen minutes.
if [ ${#rehearse[@]} = 0 ] && [ -x "$package/bin/parallel_collectives" ]; then
  part parallel "$here/parallel.sh" "$package" "$out"
else
  leave_out parallel "it needs two GPUs and bin/parallel_collectives"
fi
end_parts
