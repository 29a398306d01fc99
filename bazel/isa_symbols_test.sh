#!/usr/bin/env bash
# Usage: isa_symbols_test.sh ISA LIBRARY.a...
#
# Fails when objects compiled for an instruction set carry a weak symbol of a function that other
# objects may carry too: the linker keeps one of them, and a machine without that instruction set
# would run into it. What names the instruction set's own namespace is a symbol of its own.
set -eu
isa=$1
shift
libraries=()
for file in "$@"; do
  [[ $file == *.a ]] && libraries+=("$file")
done
[ ${#libraries[@]} -gt 0 ] || { echo "no library among: $*"; exit 1; }
symbols=$(nm --demangle --defined-only "${libraries[@]}")
shared=$(grep -E '^[0-9a-f]* [WVu] ' <<<"$symbols" | grep -v -e "\b$isa::" -e ' DW\.ref\.' || true)
if [ -n "$shared" ]; then
  echo "These symbols of ${libraries[*]} are shared with code for other machines:"
  cut -d' ' -f2- <<<"$shared" | sort -u
  echo "Keep inline functions and containers from elsewhere out of files compiled per instruction set."
  exit 1
fi
echo "$(grep -c ' T ' <<<"$symbols") functions of $isa, none shared"
