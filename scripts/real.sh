#!/bin/sh
# Create the environment of some third-party programs from its lock.
#   TORCH=2.13.0 sh scripts/real.sh .venv real-texts
# torch comes first and without a hash, since its builds depend on the machine; packages that need it then find it installed.
set -eu

venv=$1
name=$2
lock=requirements-$name.lock

# llama-stack needs a newer Python than the oldest one that this project supports.
find_python() {
    if ! grep -q '^llama-stack==' "$lock"; then echo "$venv/bin/python"; return; fi
    "$venv/bin/python" -c 'import sys
from scripts.pythons import look_for
found = next(filter(None, map(look_for, ("3.12", "3.13"))), None)
sys.exit("Python 3.12 or 3.13 is needed, and neither is here") if found is None else print(found.program)'
}

python=$(find_python)
rm -rf "${venv:?}/$name"
"$python" -m venv "$venv/$name"
if grep -q '^torch==' "$lock"; then
    echo "$lock: installing torch $TORCH"
    "$venv/$name/bin/python" -m pip --quiet --disable-pip-version-check install "torch==$TORCH" || { rm -rf "${venv:?}/$name"; exit 1; }
fi
# The lock is complete, so only packages that it names are installed. Two have no wheels; torch brought setuptools.
"$venv/$name/bin/python" scripts/install.py "$lock" --no-deps --no-build-isolation \
    --only-binary=:all: --no-binary=betterproto,stringcase || { rm -rf "${venv:?}/$name"; exit 1; }
