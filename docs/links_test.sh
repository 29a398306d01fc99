#!/usr/bin/env bash
# Usage: links_test.sh WORKSPACE_FILE
#
# Fails where a page names what is not there: a linked file or heading, a source file in backticks
# (`megatron/ops/norm.h`, or relative to a room), or a test (`norm_test`). It reads the pages of the
# tree in which WORKSPACE_FILE really lies.
set -u
cd "$(dirname "$(readlink -f "$1")")" || exit 1

failed=0
fail() { echo "$1" >&2; failed=1; }

# The anchor of a heading, as GitHub makes it.
anchor() {
  tr '[:upper:]' '[:lower:]' <<<"$1" | sed -E 's/`//g; s/[^a-z0-9 _-]//g; s/ /-/g'
}

has_anchor() {  # $1: page, $2: anchor
  local heading
  while IFS= read -r heading; do
    [ "$(anchor "$heading")" = "$2" ] && return 0
  done < <(grep -E '^#+ ' "$1" | sed -E 's/^#+ //')
  return 1
}

# Whether a room has the file at this path, as a page about one room names it.
is_in_tree() { grep -qE "(^|/)$(sed 's/[.]/[.]/g' <<<"$1")\$" <<<"$tree"; }

tree=$(find megatron tools docs bazel -type f)
# The tests that BUILD files name, and those that have a file of their own.
tests=$(
  grep -E '/BUILD$' <<<"$tree" | xargs grep -hoE '"[a-z0-9_]+_test"' | tr -d '"'
  grep -oE '[a-z0-9_]+_test[.][a-z]+$' <<<"$tree" | sed 's/[.].*//'
)
pages=(README.md CONTRIBUTING.md docs/*.md)
links=0
files=0
for page in "${pages[@]}"; do
  folder=$(dirname "$page")
  while IFS= read -r link; do
    links=$((links + 1))
    target=${link%%#*}
    case $link in
      *://*) continue ;;
      *#*) fragment=${link#*#} ;;
      *) fragment= ;;
    esac
    path=$page
    [ -n "$target" ] && path=$folder/$target
    if [ ! -e "$path" ]; then
      fail "$page: the link '$link' leads to no file"
    elif [ -n "$fragment" ] && ! has_anchor "$path" "$fragment"; then
      fail "$page: the link '$link' leads to no heading"
    fi
  done < <(grep -oE '\]\([^) ]+\)' "$page" | sed -E 's/^\]\(//; s/\)$//')
  while IFS= read -r file; do
    files=$((files + 1))
    # Patterns such as models/*_test.cc, and the x of "how to add an x", are no single files.
    case $file in *[*{]* | */x.* | */x/*) continue ;; esac
    [ -e "$file" ] || [ -e "$folder/$file" ] || is_in_tree "$file" ||
      fail "$page: there is no file '$file'"
  done < <(grep -oE '`[A-Za-z0-9_.*{},/-]+/[A-Za-z0-9_.*{},-]+\.(h|cc|cu|cuh|sh|proto|bzl|md|svg)`' \
    "$page" | tr -d '`')
  while IFS= read -r test; do
    grep -qxF "$test" <<<"$tests" || fail "$page: there is no test '$test'"
  done < <(grep -oE '`[a-z0-9_]+_test`' "$page" | tr -d '`' | sort -u)
done
[ $links -gt 50 ] && [ $files -gt 20 ] || fail "only $links links and $files files were found"
echo "${#pages[@]} pages, $links links, $files files"
exit $failed
