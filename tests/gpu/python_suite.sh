#!/usr/bin/env bash
# Both Python packages with torch on a real GPU. No network, no build tools: the libraries are carried.
#
#   tests/gpu/python_suite.sh [LIB_DIR] [OUT] [--only CASE,CASE] [--seconds N]
#
# LIB_DIR  holds libneap_hook.so and libneap_memory_saver.so (default build/core/lib)
# OUT      JSON lines, one a case (default output/gpu/python_suite.jsonl)
# Goes on after a failure, prints a summary, exits 1 if any case failed. Less than five minutes.
set -uo pipefail
cd "$(dirname "$0")/../.."
lib=$(realpath "${1:-build/core/lib}")
out=${2:-output/gpu/python_suite.jsonl}
mkdir -p "$(dirname "$out")"
for file in libneap_hook.so libneap_memory_saver.so; do
  [ -e "$lib/$file" ] || { echo "python_suite: $lib/$file is missing (build neap_hook_library and neap_drop_in_library)" >&2; exit 2; }
done
exec python3 tests/gpu/python_suite.py --lib "$lib" --out "$out" "${@:3}"
