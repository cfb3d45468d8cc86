# Parts of a run on GPUs, one after the other; sourced, then begun with the script's arguments. Sets package, neap, out, ranks and only;
# rehearse, an array that is empty or has --rehearse; and limits of a part: minutes, after which no further run starts, or seconds, if the
# script set a default before.
parts=0 failed=0 left_out=()
usage() { # CODE: the script's comment from its command on
  sed -n '/^#   tests\/gpu\//,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit "$1"
}
refuse() {
  echo "$(basename "$0"): $1" >&2
  exit 2
}
begin_parts() { # PACKAGE_DIR OUT_DIR [--ranks N] [--only REGEX] [--minutes M | --seconds S] [--rehearse]
  [ "${1:-}" != --help ] || usage 0
  [ $# -ge 2 ] || usage 2
  package=$(readlink -f "$1") neap=$(readlink -f "$1")/bin/neap
  mkdir -p "$2" && out=$(readlink -f "$2")
  shift 2
  ranks='' only=. rehearse=()
  while [ $# -gt 0 ]; do
    local name=${1#--}
    case $1 in
      --rehearse) rehearse=(--rehearse); shift; continue ;;
      --ranks | --only) ;;
      --minutes | --seconds) [ -n "${!name:-}" ] || refuse "what is $1?" ;;
      *) refuse "what is $1?" ;;
    esac
    [ $# -ge 2 ] || refuse "$1 needs a value"
    printf -v "$name" %s "$2"
    shift 2
  done
  [ -x "$neap" ] || refuse "no $neap: give scripts/package's folder"
  ranks=${ranks:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
  [ "$ranks" -ge 2 ] || refuse "$ranks ranks; at least 2 are needed (--rehearse --ranks 2 runs on CPU ranks)"
}
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
limited() { # NAME SECONDS COMMAND...: a part that ends after SECONDS, or --seconds if that is less. In the command, MINUTES and SECONDS
  # are 0.85 of it, after which no further run should start; MINUTES/N is the Nth part of that.
  local name=$1 most=$(($2 < seconds ? $2 : seconds)) words=() word
  shift 2
  for word in "$@"; do
    case $word in
      SECONDS) word=$((most * 85 / 100)) ;;
      MINUTES) word=$(minutes_of "$most" 1) ;;
      MINUTES/*) word=$(minutes_of "$most" "${word#*/}") ;;
    esac
    words+=("$word")
  done
  part "$name" timeout -k 30 "$most" "${words[@]}"
}
minutes_of() { awk "BEGIN { printf \"%.2f\", 0.85 * $1 / 60 / $2 }"; } # SECONDS N
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
