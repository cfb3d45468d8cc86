# Parts of a run on GPUs, one after the other; sourced. The caller sets: out, a folder; only, a regular expression of parts' names.
parts=0 failed=0 left_out=()
selected() { [[ $1 =~ $only ]]; } # NAME
part() { # NAME COMMAND...: its log is OUT_DIR/NAME.log, its line of OUT_DIR/parts.jsonl the exit code and the seconds
  local name=$1 begin=$SECONDS code
  shift
  selected "$name" || return 0
  parts=$((parts + 1))
  echo "== $name: ${*//$here\//}"
  "$@" 2>&1 | tee "$out/$name.log"
  code=${PIPESTATUS[0]}
  [ "$code" = 0 ] || failed=$((failed + 1))
  echo "== $name: exit $code, $((SECONDS - begin)) s"
  echo "{\"part\": \"$name\", \"exit\": $code, \"seconds\": $((SECONDS - begin)), \"ranks\": $ranks, \"date\": \"$(date -u +%FT%TZ)\", $NEAP_PARTS_MACHINE}" >>"$out/parts.jsonl"
}
leave_out() { # NAME WHY
  ! selected "$1" || left_out+=("$1 ($2)")
}
end_parts() {
  for what in ${left_out[@]+"${left_out[@]}"}; do echo "left out: $what"; done
  echo "$parts parts on $ranks ranks, $failed failed, ${#left_out[@]} left out; results in $out"
  [ "$failed" = 0 ]
}
has_modules() { python3 -c "import ${1// /, }" 2>/dev/null; }
# nvidia-smi takes seconds, and scripts that this one starts source it again.
if [ -z "${NEAP_PARTS_MACHINE:-}" ]; then
  NEAP_PARTS_MACHINE="\"gpu and driver\": \"$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)\""
  export NEAP_PARTS_MACHINE
fi
