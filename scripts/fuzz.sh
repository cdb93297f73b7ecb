#!/usr/bin/env bash
# Runs the fuzz targets (tests/fuzz) with clang's libFuzzer: scripts/fuzz.sh [SECONDS a target, 3600] [TARGET...]
#
# The seconds are those of a processor, so that a target gets as much on a machine that does other work as on a free one.
# Ends early on SIGINT or SIGTERM, with the table of what was done: target, seconds, runs, executions a second, edges
# covered, inputs kept and findings, which are files in FOLDER/findings. Seconds, runs and findings add up over all calls
# with one FOLDER; a target that has $QUIRE_FUZZ_RUNS of them (gguf and safetensors five times as many) is done.
# FOLDER, where the corpora grow too, is $QUIRE_FUZZ_FOLDER, else build/fuzz-corpus; $QUIRE_FUZZ_JOBS targets run at
# once (1). The build folder is $QUIRE_FUZZ_BUILD, else build/fuzz.
#
# Limits: sanitizers make the targets about 5 times slower and, with red zones, shadow and coverage, about 3 times
# larger, so 768 MB stand for the 256 MB that the replay of the corpus allows without them; the quarantine of freed
# memory is held to 16 MB, for by default it alone may take 256. A single allocation is held to 256 MB. The targets bound
# their own processor time (10 s here, 1 s in the replay); -timeout on the wall is for what hangs without using any.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

seconds=3600
if [[ ${1-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
folder=$(realpath -m "${QUIRE_FUZZ_FOLDER:-build/fuzz-corpus}")
build=$(realpath -m "${QUIRE_FUZZ_BUILD:-build/fuzz}")
jobs=${QUIRE_FUZZ_JOBS:-1}
most_runs=${QUIRE_FUZZ_RUNS:-0}

open_log fuzz.log
command -v clang++-19 >/dev/null || die "clang++-19 is missing: apt-get install clang-19 libclang-rt-19-dev"
mkdir -p "$folder/findings"

known=()
for source in tests/fuzz/*_fuzz.cpp; do known+=("$(basename "$source" _fuzz.cpp)"); done
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then targets=("${known[@]}"); fi
for target in "${targets[@]}"; do
  [[ " ${known[*]} " == *" $target "* ]] || die "no target $target; there are: ${known[*]}"
done

step "configuring (fuzz)" cmake --preset fuzz -B "$build"
step "building the targets" cmake --build "$build" --target "${targets[@]/#/fuzz_}"

# processor_seconds PID: of the process, whole ones; nothing where it has ended.
processor_seconds() {
  local text fields
  text=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  read -ra fields <<<"${text##*) }"
  echo $(((fields[11] + fields[12]) / $(getconf CLK_TCK)))
}

# total NAME: "SECONDS RUNS" of all calls until now.
total() { cat "$folder/$1.total" 2>/dev/null || echo 0 0; }

# runs_wanted NAME: of all calls together; 0: as many as its seconds allow.
runs_wanted() {
  case $1 in
    gguf | safetensors) echo $((5 * most_runs)) ;;
    *) echo "$most_runs" ;;
  esac
}

# fuzz_target NAME: until its seconds are used. libFuzzer ends with the first finding: begin again, with what was learnt.
fuzz_target() {
  local name=$1 log=$folder/$1.log dictionary=tests/fuzz/dictionaries/$1.dict used=0 run now pid seconds_before runs_before runs=0 wanted
  wanted=$(runs_wanted "$name")
  read -r seconds_before runs_before <<<"$(total "$name")"
  if ((wanted > 0 && runs_before >= wanted)); then return; fi
  local -a options=(-timeout=600 -rss_limit_mb=768 -malloc_limit_mb=256 -max_len=16384 -print_final_stats=1 -verbosity=1
    -report_slow_units=60 -reload=0 -use_value_profile=1 "-artifact_prefix=$folder/findings/$name-")
  mkdir -p "$folder/$name"
  : >"$log"
  if [[ -f $dictionary ]]; then options+=("-dict=$dictionary"); fi
  while ((used < seconds)) && ((wanted == 0 || runs_before + runs < wanted)) && [[ ! -e $folder/ended ]]; do
    if ((wanted > 0)); then options+=("-runs=$((wanted - runs_before - runs))"); fi  # the last one counts
    ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
      "$build/tests/fuzz/fuzz_$name" "${options[@]}" "$folder/$name" "tests/fuzz/corpus/$name" >>"$log" 2>&1 &
    pid=$! run=0
    while now=$(processor_seconds "$pid") && [[ -n $now ]]; do
      run=$now
      if ((used + run >= seconds)) || [[ -e $folder/ended ]]; then kill -INT "$pid" 2>/dev/null || true; fi
      sleep 1
    done
    wait "$pid" || true
    used=$((used + run))
    runs=$(awk '/^stat::number_of_executed_units:/ {sum += $2} END {print sum + 0}' "$log")
    echo "$((seconds_before + used)) $((runs_before + runs))" >"$folder/$name.total"
  done
}

rm -f "$folder/ended"
trap 'touch "$folder/ended"' INT TERM
before=$(find "$folder/findings" -type f | wc -l)
for target in "${targets[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
  if [[ -e $folder/ended ]]; then break; fi
  say "fuzzing $target for $seconds s"
  fuzz_target "$target" &
done
while [[ -n $(jobs -rp) ]]; do wait || true; done  # a signal ends a wait

printf '%-16s %8s %12s %8s %8s %9s %9s\n' target seconds runs runs/s edges inputs findings
for target in "${targets[@]}"; do
  read -r used runs <<<"$(total "$target")"
  edges=$(grep -aoE ' cov: [0-9]+' "$folder/$target.log" | awk '$2 > most {most = $2} END {print most + 0}')
  found=$(find "$folder/findings" -type f -name "$target-*" | wc -l)
  printf '%-16s %8d %12d %8d %8d %9d %9d\n' "$target" "$used" "$runs" $((runs / (used > 0 ? used : 1))) "$edges" \
    "$(find "$folder/$target" -type f | wc -l)" "$found"
done
after=$(find "$folder/findings" -type f | wc -l)
if ((after > before)); then die "$((after - before)) new findings in $folder/findings"; fi
