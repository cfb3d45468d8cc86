# Parts of a run on GPUs, one after the other; sourced. The caller sets: out, a folder; only, a regular expression of parts' names.
parts=0 failed=0 left_out=()
part() { # NAME COMMAND...: its log is OUT_DIR/NAME.log, its line of OUT_DIR/parts.jsonl the exit code and the seconds
  local name=$1 begin=$SECONDS code
  shift
  [[ $name =~ $only ]] || return 0
  parts=$((parts + 1))
  echo "== $name: ${*//$here\//}"
  "$@" 2>&1 | tee "$out/$name.log"
  code=${PIPESTATUS[0]}
  [ "$code" = 0 ] || failed=$((failed + 1))
  echo "== $name: exit $code, $((SECONDS - begin)) s"
  echo "{\"part\": \"$name\", \"exit\": $code, \"seconds\": $((SECONDS - begin)), \"ranks\": $ranks, \"date\": \"$(date -u +%FT%TZ)\", $machine}" >>"$out/parts.jsonl"
}
leave_out() { # NAME WHY
  [[ ! $1 =~ $only ]] || left_out+=("$1 ($2)")
}
end_parts() {
  for what in ${left_out[@]+"${left_out[@]}"}; do echo "left out: $what"; done
  echo "$parts parts on $ranks ranks, $failed failed, ${#left_out[@]} left out; results in $out"
  [ "$failed" = 0 ]
}
has_modules() { python3 -c "import ${1// /, }" 2>/dev/null; }
machine="\"gpu\": \"$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)\", \"driver\": \"$(
  nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)\""
