#!/bin/sh
# Run the tests of the byte path on a copy compiled with ASan and UBSan: once, or repeatedly with new seeds for MINUTES.
# usage: scripts/sanitized.sh PYTHON COPY [MINUTES]
set -eu
python=$1 copy=$2 minutes=${3:-0}
tests="tests/node/lane tests/node/faces/test_cut_through.py tests/node/faces/test_direct_calls.py
    tests/node/faces/test_stream_tap.py tests/router/http tests/router/openai tests/router/peers tests/router/select
    tests/router/state tests/router/test_failover_recording.py tests/router/test_failover_stream.py"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Python's own allocator would hide reads beyond an object; pycryptodome loads its libraries in a way that ASan refuses.
export PYTHONMALLOC=malloc PYCRYPTODOME_DISABLE_DEEPBIND=1 PYTHONSAFEPATH=1 PYTHONPATH="$PWD/$copy:$PWD"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1
libraries="$(${CC:-gcc} -print-file-name=libasan.so) $(${CC:-gcc} -print-file-name=libubsan.so)"
began=$(date +%s) runs=0
while :; do
    [ "$runs" -eq 0 ] || export SEED=$((began + runs))
    # shellcheck disable=SC2086
    if ! LD_PRELOAD=$libraries "$python" -X faulthandler -m pytest -q -s -p no:cacheprovider $tests -m "not slow" >"$log" 2>&1; then
        grep -E -A 40 'runtime error|AddressSanitizer|^(FAILED|ERROR)|^E ' "$log" || tail -n 40 "$log"
        echo "== failed, with SEED=${SEED:-}"
        exit 1
    fi
    runs=$((runs + 1))
    echo "$(tail -n 1 "$log") (run $runs, SEED=${SEED:-})"
    [ $(($(date +%s) - began)) -lt $((60 * minutes)) ] || break
done
echo "== no finding in $runs runs, $(($(date +%s) - began)) s"
