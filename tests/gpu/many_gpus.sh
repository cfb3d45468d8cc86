#!/usr/bin/env bash
# Measures four and eight GPUs: the study's rows with Neap and recorded, GRPO and PPO of 7B compared with verl's throughput, the largest KV
# ratios of colocated rollouts, and ZeRO-3 compared with one GPU and with FSDP2. Each part has its own time limit; the run goes on after a
# failure, and the closing line counts parts. On fewer than four ranks models and batches are smaller.
#
#   tests/gpu/many_gpus.sh PACKAGE_DIR OUT_DIR [--ranks N] [--only REGEX] [--seconds S] [--rehearse]
#
# PACKAGE_DIR  scripts/package's folder
# OUT_DIR      gets each part's log and JSON lines, and parts.jsonl
# --ranks      default: all GPUs that nvidia-smi lists
# --only       parts by name: efficiency, fsdp2, rl-7b, colocation-7b, colocation-large, study, recorded, ways
# --seconds    the longest that a part may take, where its own limit is longer; its last run starts before 0.85 of it
# --rehearse   tiny models on CPU ranks over MPI
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
study=$here/../../bench/study
# shellcheck source=tests/gpu/parts.sh
. "$here/parts.sh"
seconds=3600
begin_parts "$@"

rehearsed=(${rehearse[@]+"${rehearse[@]}"})
of_ranks() { # NAME SECONDS REGEX N: the N parts of ranks.sh
  limited "$1" "$2" "$here/ranks.sh" "$package" "$out/$1" --ranks "$ranks" --only "$3" --minutes "MINUTES/$4" "${rehearsed[@]}"
}
colocation() { # NAME SECONDS WORDS...
  local name=$1 most=$2
  shift 2
  limited "$name" "$most" python3 "$here/colocation.py" "$neap" "$out/$name" --ranks "$ranks" --ratio 0.9 --minutes MINUTES "${rehearsed[@]}" "$@"
}
rl=() large=qwen2.5-32b recorded=(--group nccl --world "$ranks" --gpus "$ranks" --gpu-room 130 --jobs 4) measured=(--gpus --ranks "$ranks")
if [ "$ranks" -lt 4 ]; then
  rl=(--prompts 16 --lengths 512 1024) large=qwen2.5-14b measured+=(--set deepspeed-opt --set colossal-opt)
fi
if [ ${#rehearse[@]} = 1 ]; then
  recorded=(--group gloo --world "$ranks" --device cpu --small --shorter 8)
  measured=(--ranks "$ranks" --set a100-opt-6.7b)
fi

of_ranks efficiency 300 efficiency 2
of_ranks fsdp2 300 fsdp2 2
limited rl-7b 1200 python3 "$here/rl_ranks.py" "$out" "$package" --ranks "$ranks" --minutes MINUTES "${rl[@]}" "${rehearsed[@]}"
colocation colocation-7b 600 --way stages
colocation colocation-large 900 --way whole --way stages --model "$large"
limited study 1200 python3 "$study/measured.py" "$neap" --minutes MINUTES "${measured[@]}"
sets=(colossal-opt colossal-gpt2 a100-opt-6.7b a100-llama-2-7b)
if selected recorded && has_modules "torch transformers accelerate peft"; then
  if has_modules deepspeed; then sets=(deepspeed-opt "${sets[@]}"); else leave_out recorded "its rows on DeepSpeed: python3 has no deepspeed"; fi
  limited recorded 3000 python3 "$study/record.py" --out "$out/recorded" --sets "${sets[@]}" --seconds SECONDS --row-seconds 420 "${recorded[@]}"
else
  leave_out recorded "python3 has no torch, transformers, accelerate and peft"
fi
of_ranks ways 3000 'ways|rollouts' 5
end_parts
