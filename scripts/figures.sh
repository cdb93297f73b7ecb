#!/usr/bin/env bash
# The campaigns behind docs/figures.md, one after the other: fuzzing, the test suite under sanitizers, soaks, storms, abuse,
# kills, and what blocks beyond the pool bring. Can be stopped and started again: what is done is not done twice.
#
#   scripts/figures.sh [--short | --full] [--list] [--again NAME] [NAME...]
#
# --short: minutes each; --full: what a release is held to (days on two cores). Results lie in build/figures/NAME.KIND, each
# with its date, revision and seconds; build/figures/table.md is made of them, for docs/figures.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

kind=short
again=()
wanted=()
list=false
while (($# > 0)); do
  case $1 in
    --short) kind=short ;;
    --full) kind=full ;;
    --list) list=true ;;
    --again)
      again+=("${2:?--again NAME}")
      shift
      ;;
    -*) die "unknown argument $1" ;;
    *) wanted+=("$1") ;;
  esac
  shift
done

folder=build/figures
mkdir -p "$folder"
python=$quire_root/build/venv/bin/python
quire=$quire_root/build/release/src/cli/quire

# pick SHORT FULL: the one of this kind.
pick() { if [[ $kind == short ]]; then echo "$1"; else echo "$2"; fi; }

# Each writes what is to be said of it as its last lines, and fails where something is not as it must be.
run_kills() {
  KILLS=$(pick 20 500) "$python" tests/e2e/test_offload.py --quire "$quire" --data tests/data Offload.test_kill_9_while_it_writes
}
run_batches() {
  QUIRE_KILLS=$(pick 20 200) "$python" tests/e2e/test_batches.py --quire "$quire" --data tests/data KilledAtAnyMoment
}
run_damage() {
  build/release/tests/test_runner --gtest_filter='SegmentFolderTest.*' &&
    build/release/tests/test_sched --gtest_filter='SchedulerRandom.BlocksOnDiskChangeNoAnswer:SchedulerRandom.BlocksInHostMemoryChangeNoAnswer'
}
run_workers() {
  local -a test=("$python" tests/e2e/test_distributed.py --quire "$quire" --data tests/data WorkersMayDie.test_streams_go_on_to_the_bit_where_workers_are_killed_or_hang)
  QUIRE_KILLS=$(pick 10 100) QUIRE_KILL_CLIENTS=32 "${test[@]}" &&
    QUIRE_KILLS=$(pick 4 100) QUIRE_KILL_CLIENTS=32 QUIRE_KILL_DEFAULT_MODEL=1 "${test[@]}"
}
run_scheduler() { scripts/soak_scheduler.sh "$(pick 1000000 100000000)"; }
run_storm() { "$python" scripts/storm.py --requests "$(pick 500 10000)" --quire "$quire"; }
run_adapters() { "$python" scripts/adapter_storm.py --minutes "$(pick 1 10)" --quire "$quire"; }
run_soak() { "$python" tests/e2e/soak.py --quire "$quire" --minutes "$(pick 3 240)" --clients 16 --seed 1 --report "$folder/soak.txt"; }
run_abuse() {
  local -a flags=()
  if [[ $kind == short ]]; then flags=(--quick); fi
  "$python" scripts/abuse.py --quire "$quire" "${flags[@]}"
}
run_overload() { "$python" scripts/overload.py --rounds "$(pick 1 5)" --quire "$quire"; }
run_offload() { "$python" scripts/bench_offload.py --quire "$quire"; }
# As many executions as a release is held to take days: what was done is added up, also where this is stopped.
run_fuzz() { QUIRE_FUZZ_RUNS=$(pick 0 10000000) scripts/fuzz.sh "$(pick 20 360000)"; }
# With address, what is compiled for it has undefined too. Without the emulated card and the fuzzers' corpora, which take a day.
run_sanitizers() {
  local preset failed=0
  for preset in asan tsan; do
    cmake --preset "$preset" -DQUIRE_UNITY=ON -DQUIRE_ISAS=runnable -DQUIRE_FLASHINFER=OFF && cmake --build "build/$preset" || return 1
    ctest --test-dir "build/$preset" -j "$(nproc)" --timeout 3600 --output-on-failure -LE "$(pick 'e2e|web' web)" -E 'on_host|cuda|fuzz' |
      tail -n 12 || failed=1
  done
  return "$failed"
}

names=(kills batches damage workers scheduler storm adapters soak abuse overload offload fuzz sanitizers)
if $list; then
  printf '%s\n' "${names[@]}"
  exit
fi
if ((${#wanted[@]} == 0)); then wanted=("${names[@]}"); fi
for name in "${wanted[@]}" "${again[@]}"; do
  [[ " ${names[*]} " == *" $name "* ]] || die "no campaign $name; there are: ${names[*]}"
done
for name in "${again[@]}"; do rm -f "$folder/$name.$kind"; done

machine="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(free -g | awk '/^Mem/ {print $2}') GiB"
for name in "${wanted[@]}"; do
  result=$folder/$name.$kind
  if [[ -e $result ]]; then
    say "$name: done on $(head -n 1 "$result")"
    continue
  fi
  say "$name ..."
  began=$SECONDS
  status=passed
  "run_$name" >"$result.log" 2>&1 || status=FAILED
  {
    echo "$(date -u +%F) at $(git rev-parse --short HEAD), $((SECONDS - began)) s, $status"
    tail -n 12 "$result.log"
  } >"$result.part"
  mv "$result.part" "$result"
  say "$name: $(head -n 1 "$result")"
done

{
  echo "$machine."
  for name in "${names[@]}"; do
    for one in short full; do
      [[ -e $folder/$name.$one ]] || continue
      printf '\n**%s**, %s: %s\n\n```\n' "$name" "$one" "$(head -n 1 "$folder/$name.$one")"
      tail -n +2 "$folder/$name.$one"
      echo '```'
    done
  done
} >"$folder/table.md"
say "written: $folder/table.md"
! grep -q FAILED "$folder"/*."$kind"
