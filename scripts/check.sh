#!/bin/sh
# Gate: every check runs, and the first words of a line say which one failed.
#   sh scripts/check.sh .venv/bin
set -u
bin=${1:?the folder with the tools}
failed=""

run() {
    name=$1
    shift
    if output=$("$@" 2>&1); then
        echo "ok      $name"
    else
        echo "FAILED  $name: $*"
        echo "$output"
        failed="$failed $name"
    fi
}

run format "$bin/ruff" format --check --quiet .
run lint "$bin/ruff" check --quiet .
run types "$bin/mypy"
run walls "$bin/lint-imports"
run dependencies "$bin/deptry" .
run spelling "$bin/codespell"
run compose "$bin/check-jsonschema" --builtin-schema vendor.compose-spec compose.yaml
[ -z "$failed" ] || { echo "make check: failed:$failed"; exit 1; }
echo "make check: all is well"
