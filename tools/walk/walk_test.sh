#!/usr/bin/env bash
# Runs the walk with a few steps of each training.
set -euo pipefail
programs=$PWD
walk=$PWD/tools/walk/walk.sh
unset BUILD_WORKING_DIRECTORY
cd "$TEST_TMPDIR"
WALK_STEPS=30 WALK_PROGRAMS=$programs bash "$walk" > output 2>&1 || { cat output; exit 1; }
tail -3 output
grep -qE '^exact answers: 0\.0[0-9]+ before, 0\.[0-9]+ after$' output || { cat output; exit 1; }
grep -q '"content"' walk/answer.json || { cat walk/answer.json; exit 1; }
grep -q 'conversations, ' output || { cat output; exit 1; }
# A second walk does not touch the first.
if WALK_PROGRAMS=$programs bash "$walk" > output 2>&1; then
  echo "a walk over another one was taken" >&2
  exit 1
fi
grep -q 'walk is there already' output || { cat output; exit 1; }
