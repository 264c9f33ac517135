#!/bin/sh
# Put a wheel into a folder. A wheel with Linux machine code is tagged `manylinux`, for the oldest C library it runs with.
# usage: scripts/tag.sh BIN WHEEL FOLDER
set -eu
case $2 in
*-linux_*) PATH=$PWD/$1:$PATH auditwheel repair -w "$3" "$2" ;;
*) cp "$2" "$3" ;;
esac
