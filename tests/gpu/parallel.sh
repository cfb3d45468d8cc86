#!/usr/bin/env bash
# Two ranks on two GPUs over NCCL, started by hand under torchrun's variables: every collective, the three stages of
# examples/reviews and DPO against one rank, packed batches, sliced optimizer states, gradients and weights, divided models, stages of a
# pipeline and divided sequences too, planned against measured on both ranks, and ranks that fail or die. Goes on after a failure; writes
# JSON lines.
# Usage: tests/gpu/parallel.sh PACKAGE_DIR OUT_DIR [CASES]   (PACKAGE_DIR: scripts/package's folder with parallel_collectives
# added to bin/; CASES: a regular expression of the cases that are run, for example 'rank_|ppo')
set -uo pipefail
package=$(readlink -f "$1")
mkdir -p "$2"
out=$(readlink -f "$2")
only=${3:-.}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$(dirname "$0")/../../examples" "$work/"
cd "$work" || exit 1
export NEAP_PROGRESS=off
# Multicast needs rights over the switch that a shared machine does not give.
export NCCL_NVLS_ENABLE=0
root=${NEAP_TORCH_ROOT:-$(python3 -c 'import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))')}
export NEAP_TORCH_ROOT=$root
LD_LIBRARY_PATH=$root/torch/lib:$(printf '%s:' "$root"/nvidia/*/lib)${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH
neap=$package/bin/neap
port=29500
failures=0 cases=0
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)

card_memory() { nvidia-smi --query-gpu=memory.used --format=csv,noheader | paste -sd " "; }

pair() {  # log name, command: two ranks; the exit code is the first that is not 0
  local log=$1 pids=() code=0 c
  shift
  port=$((port + 1))
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      timeout 100 "$@" >"$out/$log.$rank.out" 2>"$out/$log.$rank.err" &
    pids+=($!)
  done
  if [ -n "${kill_after:-}" ]; then (sleep "$kill_after"; card_memory >"$out/$log.memory"; pkill "-${signal:-KILL}" -P "${pids[${victim:-1}]}") & fi
  for pid in "${pids[@]}"; do
    wait "$pid"; c=$?
    [ "$code" != 0 ] || code=$c
  done
  return "$code"
}

record() {  # name, ok (0/1), seconds, note
  cases=$((cases + 1))
  [ "$2" = 1 ] || failures=$((failures + 1))
  echo "== $1: $([ "$2" = 1 ] && echo passed || echo FAILED) in $3 s  $4"
  python3 - "$@" "$gpu" >>"$out/parallel.jsonl" <<'P'
import json, sys
name, ok, seconds, note, gpu = sys.argv[1:]
print(json.dumps({"suite": "parallel", "case": name, "ok": ok == "1", "seconds": float(seconds), "note": note, "gpu": gpu}))
P
}

expect() {  # name, expected exit code ("any": neither 0 nor 124, the limit's), command
  local name=$1 expected=$2 start=$SECONDS code ok=0
  [[ $name =~ $only ]] || return 0
  shift 2
  "$@"; code=$?
  if [ "$expected" = any ]; then case $code in 0 | 124) ;; *) ok=1 ;; esac; elif [ "$code" = "$expected" ]; then ok=1; fi
  [ "$ok" = 1 ] || tail -n 8 "$out/$name".*err
  record "$name" "$ok" "$((SECONDS - start))" "exit $code, expected $expected: ${*//$package/PACKAGE}"
}

alone() { local log=$1; shift; timeout 100 "$@" >"$out/$log.out" 2>"$out/$log.err"; }

compare() {  # name, folder of one rank, folder of two, relative tolerance, [packed: a micro-batch may be less than planned]
  local note ok=0
  [[ $1 =~ $only ]] || return 0
  note=$(python3 - "$2" "$3" "$4" "${5:-}" <<'P'
import json, sys
one, two, tolerance, packed = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
rows = lambda folder, file: [json.loads(line) for line in open(f"{folder}/{file}")]
worst = (0, "")
for a, b in zip(rows(one, "metrics.jsonl"), rows(two, "metrics.jsonl")):
    for key in ("train/loss", "train/grad_norm", "critic/score/mean", "actor/pg_loss", "critic/vf_loss", "actor/entropy"):
        if key in a:
            worst = max(worst, (abs(a[key] - b[key]) / max(1e-2, abs(a[key])), f"{key} at step {a['step']}"))
speed = [sum(r["timing_s/step"] for r in rows(f, "metrics.jsonl")[1:]) for f in (one, two)]
peaks = []
for folder in (two, two + "/ranks/1"):
    plan = json.load(open(folder + "/plan.json"))
    planned = {p["name"]: p["peak"] for p in plan["phases"]}
    off = [r["peak"] / planned[r["phase"]] - 1 for r in rows(folder, "phases.jsonl")]
    peaks.append(max(off) if packed else max(map(abs, off)))
print(f"largest difference {worst[0]:.2e} ({worst[1]}); measured off planned by {peaks[0]:.1%} and {peaks[1]:.1%}; "
      f"steps after the first {speed[0]:.2f} s alone, {speed[1]:.2f} s on two")
sys.exit(0 if worst[0] <= tolerance and max(peaks) < 0.05 else 1)
P
) && ok=1
  record "$1" "$ok" 0 "$note"
}

as_of() {  # log name and folder of two ranks, folder that it is as, relative tolerance, their configuration and keys. $packed: as of compare
  local name=$1 like=$2 near=$3
  shift 3
  expect "$name" 0 pair "$name" "$neap" train "$@" trainer.default_local_dir=../../output/"$name"
  compare "${name}_parity" "$like" "output/$name" "$near" "${packed:-}"
}

expect collectives 0 pair collectives "$package/bin/parallel_collectives" cuda
expect rank_fails any pair rank_fails "$package/bin/parallel_collectives" cuda fail 1 3
expect rank_fails_in_lane any pair rank_fails_in_lane "$package/bin/parallel_collectives" cuda fail-in-lane 1 3
expect rank_fails_in_copies any pair rank_fails_in_copies "$package/bin/parallel_collectives" cuda fail-in-copies 1 3
expect rank_works_for_long 0 pair rank_works_for_long "$package/bin/parallel_collectives" cuda slow 1
expect rank_is_late any pair rank_is_late "$package/bin/parallel_collectives" cuda late 1
common=(device.memory=4GiB)
exact=(device.dtype=float32 "${common[@]}")
reviews=examples/reviews
sft=($reviews/sft.toml trainer.total_training_steps=20)
expect sft_1 0 alone sft_1 "$neap" train $reviews/sft.toml "${exact[@]}" trainer.total_training_steps=20
expect sft_2 0 pair sft_2 "$neap" train $reviews/sft.toml "${exact[@]}" trainer.total_training_steps=20 \
  trainer.default_local_dir=../../output/sft_2
compare sft_parity output/reviews/sft output/sft_2 1e-3
expect sft_bf16 0 pair sft_bf16 "$neap" train $reviews/sft.toml "${common[@]}" trainer.total_training_steps=20 \
  trainer.default_local_dir=../../output/sft_bf16
# Sliced optimizer states, gradients, and weights: planned as measured on both ranks. Two terms have one order, so that the bits are the
# same: a mini-batch is one micro-batch a rank.
for stage in 1 2 3; do
  as_of sft_zero$stage output/sft_bf16 0 "${sft[@]}" "${common[@]}" parallel.zero_stage=$stage
  for file in model optimizer; do
    expect sft_zero${stage}_$file 0 cmp output/sft_bf16/latest/actor/$file.safetensors output/sft_zero$stage/latest/actor/$file.safetensors
  done
done
# Of several micro-batches stages 2 and 3 add in another order.
for stage in 2 3; do
  as_of sft_zero${stage}_micro output/sft_2 1e-3 "${sft[@]}" "${exact[@]}" data.micro_batch_size_per_gpu=4 parallel.zero_stage=$stage
done
expect sft_zero3_resumes 0 alone sft_zero3_resumes "$neap" train $reviews/sft.toml "${common[@]}" trainer.total_training_steps=22 \
  trainer.resume_mode=../../output/sft_zero3/latest trainer.default_local_dir=../../output/sft_zero3_resumes
# Models that the ranks divide: one rank's losses and weights but for the order of sums, planned as measured.
divided=(parallel.tensor_model_parallel_size=2)
as_of sft_tensor output/reviews/sft 1e-3 "${sft[@]}" "${exact[@]}" "${divided[@]}"
as_of sft_tensor_bf16 output/sft_bf16 5e-2 "${sft[@]}" "${common[@]}" "${divided[@]}"
# The same with rows of hidden states divided, too.
rows=("${divided[@]}" parallel.sequence_parallel=true)
as_of sft_rows output/reviews/sft 1e-3 "${sft[@]}" "${exact[@]}" "${rows[@]}"
as_of sft_rows_bf16 output/sft_bf16 5e-2 "${sft[@]}" "${common[@]}" "${rows[@]}"
adafactor=(actor_rollout_ref.actor.optim.optimizer=adafactor)
expect sft_adafactor 0 alone sft_adafactor "$neap" train $reviews/sft.toml "${exact[@]}" "${adafactor[@]}" trainer.total_training_steps=20 \
  trainer.default_local_dir=../../output/sft_adafactor
as_of sft_tensor_adafactor output/sft_adafactor 1e-3 "${sft[@]}" "${exact[@]}" "${divided[@]}" "${adafactor[@]}"
expect sft_tensor_resumes 0 alone sft_tensor_resumes "$neap" train $reviews/sft.toml "${exact[@]}" trainer.total_training_steps=22 \
  trainer.resume_mode=../../output/sft_tensor/latest trainer.default_local_dir=../../output/sft_tensor_resumes
# Stages of a pipeline: one rank's losses and weights, planned as measured on both.
staged=(parallel.pipeline_model_parallel_size=2 data.use_dynamic_bsz=false data.micro_batch_size_per_gpu=4)
expect sft_whole 0 alone sft_whole "$neap" train $reviews/sft.toml "${exact[@]}" "${staged[@]:1}" trainer.total_training_steps=20 \
  trainer.default_local_dir=../../output/sft_whole
as_of sft_stages output/sft_whole 1e-3 "${sft[@]}" "${exact[@]}" "${staged[@]}"
as_of sft_chunks output/sft_whole 1e-3 "${sft[@]}" "${exact[@]}" "${staged[@]}" parallel.virtual_pipeline_model_parallel_size=2
as_of sft_zero_bubble output/sft_whole 1e-3 "${sft[@]}" "${exact[@]}" "${staged[@]}" parallel.pipeline_parallel_schedule=zero_bubble
as_of sft_chunks_zero3 output/sft_whole 1e-3 "${sft[@]}" "${exact[@]}" "${staged[@]}" parallel.virtual_pipeline_model_parallel_size=2 \
  parallel.zero_stage=3
# Optimizer states that rest on disk, each rank's in a file of its own.
as_of sft_disk output/sft_2 1e-3 "${sft[@]}" "${exact[@]}" memory.optimizer_offload=nvme \
  'memory.allow=["recompute","offload","offload_optimizer","nvme"]'
expect sft_stages_resumes 0 alone sft_stages_resumes "$neap" train $reviews/sft.toml "${exact[@]}" "${staged[@]:1}" \
  trainer.total_training_steps=22 trainer.resume_mode=../../output/sft_stages/latest \
  trainer.default_local_dir=../../output/sft_stages_resumes
expect reward_2 0 pair reward_2 "$neap" train $reviews/reward.toml "${exact[@]}" trainer.total_training_steps=5
steps=(trainer.total_training_steps=3 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
  critic.ppo_micro_batch_size_per_gpu=8 trainer.test_freq=-1 trainer.save_freq=-1)
ppo=($reviews/ppo.toml "${exact[@]}" "${steps[@]}")
expect ppo_1 0 alone ppo_1 "$neap" train $reviews/ppo.toml "${exact[@]}" "${steps[@]}" \
  trainer.default_local_dir=../../output/ppo_1
expect ppo_2 0 pair ppo_2 "$neap" train $reviews/ppo.toml "${exact[@]}" "${steps[@]}" \
  trainer.default_local_dir=../../output/ppo_2
compare ppo_parity output/ppo_1 output/ppo_2 5e-2
as_of ppo_tensor output/ppo_1 5e-2 "${ppo[@]}" "${divided[@]}"
# Sliced weights of four models, gathered whole to generate.
as_of ppo_zero3 output/ppo_2 5e-2 "${ppo[@]}" parallel.zero_stage=3
# Each model divided in its own way: by batches, by tensors and by slices.
as_of ppo_placed output/ppo_2 5e-2 "${ppo[@]}" critic.tensor_model_parallel_size=2 actor_rollout_ref.ref.zero_stage=3
# The actor in two stages, the others whole, and the other way round.
as_of ppo_stages output/ppo_1 5e-2 "${ppo[@]}" actor_rollout_ref.actor.pipeline_model_parallel_size=2 \
  actor_rollout_ref.ref.pipeline_model_parallel_size=2
as_of ppo_critic_stages output/ppo_1 5e-2 "${ppo[@]}" critic.pipeline_model_parallel_size=2 reward_model.pipeline_model_parallel_size=2
as_of ppo_rows output/ppo_1 5e-2 "${ppo[@]}" "${rows[@]}"
# Both divide the responses that each has generated its half of.
texts=("${ppo[@]:0:3}" trainer.total_training_steps=3 trainer.test_freq=-1 trainer.save_freq=-1
  actor_rollout_ref.actor.use_dynamic_bsz=true)
expect ppo_packed 0 alone ppo_packed "$neap" train "${texts[@]}" trainer.default_local_dir=../../output/ppo_packed
packed=packed as_of ppo_context output/ppo_packed 5e-2 "${texts[@]}" parallel.context_parallel_size=2
packed=packed as_of ppo_ring output/ppo_packed 5e-2 "${texts[@]}" parallel.context_parallel_size=2 parallel.cp_comm_type=p2p
expect ppo_bf16 0 pair ppo_bf16 "$neap" train $reviews/ppo.toml "${common[@]}" "${steps[@]}" \
  trainer.default_local_dir=../../output/ppo_bf16
for run in 1 2; do
  start=alone
  [ $run = 1 ] || start=pair
  expect dpo_$run 0 $start dpo_$run "$neap" train examples/preferences/dpo.toml "${exact[@]}" trainer.total_training_steps=5 \
    trainer.default_local_dir=../../output/dpo_$run
  expect packed_$run 0 $start packed_$run "$neap" train $reviews/sft.toml "${exact[@]}" trainer.total_training_steps=20 \
    data.use_dynamic_bsz=true trainer.default_local_dir=../../output/packed_$run
done
compare dpo_parity output/dpo_1 output/dpo_2 1e-3
compare packed_parity output/packed_1 output/packed_2 1e-3 packed
# Sequences that both divide: one rank's losses, planned at least as measured.
sequences=(data.use_dynamic_bsz=true parallel.context_parallel_size=2)
for stage in 0 2 3; do
  packed=packed as_of sft_context$stage output/packed_1 1e-3 "${sft[@]}" "${exact[@]}" "${sequences[@]}" parallel.zero_stage=$stage
done
expect packed_bf16 0 alone packed_bf16 "$neap" train "${sft[@]}" "${common[@]}" data.use_dynamic_bsz=true \
  trainer.default_local_dir=../../output/packed_bf16
packed=packed as_of packed_context_bf16 output/packed_bf16 5e-2 "${sft[@]}" "${common[@]}" "${sequences[@]}"
# The same with keys and values that pass round.
ring=("${sequences[@]}" parallel.cp_comm_type=p2p)
for stage in 0 3; do
  packed=packed as_of sft_ring$stage output/packed_1 1e-3 "${sft[@]}" "${exact[@]}" "${ring[@]}" parallel.zero_stage=$stage
done
packed=packed as_of packed_ring_bf16 output/packed_bf16 5e-2 "${sft[@]}" "${common[@]}" "${ring[@]}"
expect sft_context_resumes 0 alone sft_context_resumes "$neap" train $reviews/sft.toml "${exact[@]}" data.use_dynamic_bsz=true \
  trainer.total_training_steps=22 trainer.resume_mode=../../output/sft_context0/latest \
  trainer.default_local_dir=../../output/sft_context_resumes
# Degrees that the plan chooses.
as_of sft_auto output/sft_bf16 5e-2 "${sft[@]}" "${common[@]}" parallel.zero_stage=auto parallel.tensor_model_parallel_size=auto
for victim in 0 1; do
  kill_after=10 expect rank_${victim}_dies any pair rank_${victim}_dies "$neap" train $reviews/sft.toml "${common[@]}" \
    trainer.total_training_steps=100000 actor_rollout_ref.nccl_timeout=15 trainer.default_local_dir=../../output/dies$victim
done
# With a gather under way, which nothing waits for on the host.
victim=1 kill_after=10 expect rank_dies_gathering any pair rank_dies_gathering "$neap" train $reviews/sft.toml "${common[@]}" \
  trainer.total_training_steps=100000 parallel.zero_stage=3 actor_rollout_ref.nccl_timeout=15 \
  trainer.default_local_dir=../../output/dies_gathering
# The other one gives up; timeout ends the one that stopped.
signal=STOP victim=1 kill_after=10 expect rank_stops any pair rank_stops "$neap" train $reviews/sft.toml "${common[@]}" \
  trainer.total_training_steps=100000 actor_rollout_ref.nccl_timeout=15 trainer.default_local_dir=../../output/stops
# What NCCL keeps on the card: two ranks in their loop against one.
if [[ memory =~ $only && -e $out/rank_1_dies.memory ]]; then
  timeout 12 "$neap" train $reviews/sft.toml "${common[@]}" trainer.total_training_steps=100000 \
    trainer.default_local_dir=../../output/loop >"$out/loop.out" 2>&1 &
  sleep 10
  one=$(card_memory) two=$(cat "$out/rank_1_dies.memory")
  # Each rank uses its own card only: both hold the same.
  python3 -c 'import sys; a, b = [int(n) for n in sys.argv[1].split() if n.isdigit()][:2]; sys.exit(abs(a - b) > 100)' "$two" && ok=1 || ok=0
  record memory $ok 0 "cards while one rank trains: $one; while two do: $two"
  wait
fi
echo "parallel: $((cases - failures)) passed, $failures failed"
exit $((failures > 0))
