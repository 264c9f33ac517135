#!/bin/sh
# Puts a wheel into a folder; one with machine code for Linux as `manylinux`, for the oldest C library that it runs with.
# usage: scripts/tag.sh BIN WHEEL FOLDER
set -eu
case $2 in
*-linux_*) PATH=$PWD/$1:$PATH auditwheel repair -w "$3" "$2" ;;
*) cp "$2" "$3" ;;
esac
