#!/usr/bin/env bash
# Measures four and eight GPUs: the study's rows with Neap and recorded, GRPO and PPO of 7B compared with verl's throughput, the largest KV
# ratios of colocated rollouts, and ZeRO-3 compared with one GPU and with FSDP2. Each part has its own time limit; the run goes on after a
# failure, and the closing line counts parts. On fewer than four ranks models and batches are smaller.
#
#   tests/gpu/many_gpus.sh PACKAGE_DIR OUT_DIR --ranks N [--only REGEX] [--seconds S] [--rehearse]
#
# PACKAGE_DIR  scripts/package's folder
# OUT_DIR      gets each part's log and JSON lines, and parts.jsonl
# --only       parts by name: efficiency, fsdp2, rl-7b, colocation-7b, colocation-large, study, recorded, ways
# --seconds    the longest that a part may take, where its own limit is longer
# --rehearse   tiny models on CPU ranks over MPI
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '6,12s/^# \{0,1\}//p' "$0"; exit "$1"; }
[ "${1:-}" != --help ] || usage 0
[ $# -ge 2 ] || usage 2
package=$(readlink -f "$1")
mkdir -p "$2" && out=$(readlink -f "$2")
shift 2
ranks=0 only=. most=3600 rehearse=()
while [ $# -gt 0 ]; do
  case $1 in
    --ranks) ranks=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --seconds) most=$2; shift 2 ;;
    --rehearse) rehearse=(--rehearse); shift ;;
    *) echo "many_gpus.sh: what is $1?" >&2; usage 2 ;;
  esac
done
neap=$package/bin/neap study=$here/../../bench/study
[ -x "$neap" ] || { echo "many_gpus.sh: no $neap: give scripts/package's folder" >&2; exit 2; }
[ "$ranks" -ge 2 ] || { echo "many_gpus.sh: --ranks is at least 2" >&2; exit 2; }
# shellcheck source=tests/gpu/parts.sh
. "$here/parts.sh"

rehearsed=(${rehearse[@]+"${rehearse[@]}"})
limited() { # NAME SECONDS COMMAND...
  local name=$1 seconds=$(($2 < most ? $2 : most))
  shift 2
  part "$name" timeout -k 30 "$seconds" "$@"
}
of_ranks() { # NAME SECONDS REGEX: parts of ranks.sh
  limited "$1" "$2" "$here/ranks.sh" "$package" "$out/$1" --ranks "$ranks" --only "$3" "${rehearsed[@]}"
}
colocation() { # NAME SECONDS WORDS...
  local name=$1 seconds=$2
  shift 2
  limited "$name" "$seconds" python3 "$here/colocation.py" "$neap" "$out/$name" --ranks "$ranks" --ratio 0.9 --minutes 10 "${rehearsed[@]}" "$@"
}
rl=() large=qwen2.5-32b recorded=(--group nccl --world "$ranks" --gpus "$ranks" --gpu-room 130 --jobs 4) measured=(--gpus --ranks "$ranks")
if [ "$ranks" -lt 4 ]; then
  rl=(--prompts 16 --lengths 512 1024) large=qwen2.5-14b measured+=(--set deepspeed-opt --set colossal-opt)
fi
if [ ${#rehearse[@]} = 1 ]; then
  recorded=(--group gloo --world "$ranks" --device cpu --small --shorter 8)
  measured=(--ranks "$ranks" --set a100-opt-6.7b)
fi

of_ranks efficiency 300 efficiency
of_ranks fsdp2 300 fsdp2
limited rl-7b 1200 python3 "$here/rl_ranks.py" "$out" "$package" --ranks "$ranks" "${rl[@]}" "${rehearsed[@]}"
colocation colocation-7b 600 --way stages
colocation colocation-large 900 --way whole --way stages --model "$large"
limited study 1200 python3 "$study/measured.py" "$neap" "${measured[@]}"
sets=(colossal-opt colossal-gpt2 a100-opt-6.7b a100-llama-2-7b)
if selected recorded && has_modules "torch transformers accelerate peft"; then
  if has_modules deepspeed; then sets=(deepspeed-opt "${sets[@]}"); else leave_out recorded "its rows on DeepSpeed: python3 has no deepspeed"; fi
  limited recorded 3000 python3 "$study/record.py" --out "$out/recorded" --sets "${sets[@]}" --seconds 2900 --row-seconds 420 "${recorded[@]}"
else
  leave_out recorded "python3 has no torch, transformers, accelerate and peft"
fi
of_ranks ways 3000 'ways|rollouts'
end_parts
