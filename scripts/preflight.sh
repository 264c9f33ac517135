#!/bin/sh
# Is everything here that the environment is made from? Prints the Python to use; says what is missing and how to get it.
#   PYTHON=/path/to/python3.12 sh scripts/preflight.sh
# libp2p depends on fastecdsa, which has no ready-made package for Linux: a C compiler, Python's headers and GMP's
# header are needed once. On Debian and Ubuntu as root they are installed; elsewhere the one command is printed.
set -eu

say() { echo "preflight: $*" >&2; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        if fits "$PYTHON"; then echo "$PYTHON"; return; fi
        say "PYTHON=$PYTHON is no Python 3.11, 3.12 or 3.13"
        return 1
    fi
    # What the machine calls python3 first: its headers are the likeliest to be there.
    for name in python3 python3.13 python3.12 python3.11; do
        if fits "$name"; then command -v "$name"; return; fi
    done
    say "Python 3.11, 3.12 or 3.13 is needed, and none of them is on PATH. Install one, for example:"
    say "    Debian, Ubuntu   apt-get install python3 python3-venv python3-dev"
    say "    Fedora           dnf install python3.13 python3.13-devel"
    say "    anything else    https://www.python.org/downloads/, then: make PYTHON=/path/to/python3.13 …"
    return 1
}

has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

compiles() {
    command -v cc >/dev/null 2>&1 || return 1
    headers=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    printf '#include <Python.h>\n#include <gmp.h>\nint main(void) { return 0; }\n' |
        cc -x c -fsyntax-only -I "$headers" - 2>/dev/null
}

install_with_apt() {
    say "installing with apt-get: $1"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300 update >&2
    # shellcheck disable=SC2086 # a list of words
    apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $1 >&2
}

mend() {
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    packages="gcc libc6-dev libgmp-dev"
    if [ "$(command -v "$1")" = /usr/bin/python3 ]; then
        packages="$packages python3-dev python3-venv"
    elif [ "$(dirname "$(command -v "$1")")" = /usr/bin ]; then
        packages="$packages python$version-dev python$version-venv"
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        install_with_apt "$packages"
    elif command -v apt-get >/dev/null; then
        say "run once:  sudo apt-get install -y $packages"
    elif command -v dnf >/dev/null; then
        say "run once:  sudo dnf install -y gcc gmp-devel python$version-devel"
    elif command -v pacman >/dev/null; then
        say "run once:  sudo pacman -S --needed gcc gmp python"
    elif command -v apk >/dev/null; then
        say "run once:  apk add gcc musl-dev gmp-dev python3-dev"
    else
        say "install a C compiler, Python $version's headers (Python.h) and GMP's (gmp.h), then try again"
    fi
}

python=$(find_python)
if ! has_venv "$python" || ! compiles "$python"; then
    mend "$python"
    has_venv "$python" || { say "$python cannot make virtual environments (ensurepip is missing)"; exit 1; }
    compiles "$python" || { say "a C compiler (cc), Python.h of $python or gmp.h is missing"; exit 1; }
fi
echo "$python"
