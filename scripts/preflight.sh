#!/bin/sh
# Check that the environment can be made. Print the Python to use, or what is missing and how to get it.
#   PYTHON=/path/to/python3.12 sh scripts/preflight.sh
# On Debian and Ubuntu, a missing venv package is installed as root; for other users the command is printed.
set -eu

say() { echo "preflight: $*" >&2; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        if fits "$PYTHON"; then echo "$PYTHON"; return; fi
        say "PYTHON=$PYTHON is no Python 3.11, 3.12 or 3.13"
        return 1
    fi
    # The machine's python3 first: the packages that belong to it are the most likely to be installed.
    for name in python3 python3.13 python3.12 python3.11; do
        if fits "$name"; then command -v "$name"; return; fi
    done
    say "Python 3.11, 3.12 or 3.13 is needed, and none of them is on PATH. Install one, for example:"
    say "    Debian, Ubuntu   apt-get install python3 python3-venv"
    say "    Fedora           dnf install python3.13"
    say "    anything else    https://www.python.org/downloads/, then: make PYTHON=/path/to/python3.13 …"
    return 1
}

has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

mend() {
    package=python3-venv
    [ "$(command -v "$1")" = /usr/bin/python3 ] ||
        package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    command -v apt-get >/dev/null || return 0
    if [ "$(id -u)" != 0 ]; then
        say "run once:  sudo apt-get install -y $package"
        return
    fi
    say "installing with apt-get: $package"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300 update >&2
    apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$package" >&2
}

python=$(find_python)
if ! has_venv "$python"; then
    mend "$python"
    has_venv "$python" || { say "$python cannot make virtual environments (ensurepip is missing)"; exit 1; }
fi
echo "$python"
