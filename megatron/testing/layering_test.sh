#!/usr/bin/env bash
# Usage: layering_test.sh WORKSPACE_FILE
#
# Fails when a dependency or an include points upward between the rooms of megatron/, when something
# depends on tools/, or when CUDA or NCCL appear outside the rooms that may know them. It reads every
# BUILD file and source of the tree in which WORKSPACE_FILE really lies.
set -eu

# room: the rooms it stands on. What those stand on may be used too.
arrows='
testing:
base:
tensorboard: base
tensor: base
ops: tensor
comm: ops tensor
layers: ops comm
pipeline: comm tensor
models: layers pipeline
generate: models
evaluate: generate data
optim: ops comm
data: base
checkpoint: tensor comm
islands: optim checkpoint federated
federated: base
plan: base pipeline
http: comm
serve: generate http data
train: layers models generate evaluate pipeline optim data checkpoint islands plan tensorboard http
'
root=$(dirname "$(readlink -f "$1")")
cd "$root"

files() {  # all of ours, without Bazel's own links
  find megatron tools -name 'bazel-*' -prune -o -type f "$@" -print | sort
}

edges() {  # file:line:what is depended on, from BUILD files and includes
  files \( -name BUILD -o -name BUILD.bazel \) |
    xargs -r grep -HnoE '^[^#]*' |
    grep -oE '^[^:]+:[0-9]+|"(@megatron)?//(megatron|tools)[^"]*"' |
    awk '/^"/ { print at ":" $0; next } { at = $0 }' |
    grep -vE ':__(sub)?pkg__|:__subpackages__' |
    sed -E 's#"(@megatron)?//#"#; s#"##g'
  files \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) |
    xargs -r grep -HnE '^ *# *include "(megatron|tools)/' |
    sed -E 's#: *\# *include "([^"]*)".*#:\1#'
}

upward() {
  awk -F: -v arrows="$arrows" '
    function close_over(room, below,   i, n, direct) {
      n = split(stands_on[below], direct, " ")
      for (i = 1; i <= n; ++i) {
        if (!((room, direct[i]) in allowed)) {
          allowed[room, direct[i]] = 1
          close_over(room, direct[i])
        }
      }
    }
    BEGIN {
      n = split(arrows, lines, "\n")
      for (i = 1; i <= n; ++i) {
        if (split(lines[i], sides, ":") == 2) stands_on[sides[1]] = sides[2]
      }
      for (room in stands_on) close_over(room, room)
    }
    {
      split($1, from, "/"); split($3, to, "/"); sub(/:.*/, "", to[2])
      if (to[1] == "tools") {
        if (from[1] != "tools") print $1 ":" $2 ": depends on tools: " $3
      } else if (from[1] == "megatron") {
        if (!(from[2] in stands_on)) print $1 ":" $2 ": " from[2] " is no room of megatron/"
        else if (!(to[2] in stands_on)) print $1 ":" $2 ": no such room: " $3
        else if (from[2] != to[2] && to[2] != "testing" && !((from[2], to[2]) in allowed))
          print $1 ":" $2 ": " from[2] " does not stand on " to[2] ": " $3
      }
    }'
}

foreign() {  # $1: what is looked for, $2: files that may have it, $3: its name
  files \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name BUILD \) |
    xargs -r grep -HnE "$1" | grep -vE "^($2)" | sed "s#\$#  <- $3 does not belong here#" || true
}

problems=$(
  edges | upward
  foreign '^ *# *include [<"](cuda|cublas|cudnn|nvrtc|cupti|nvtx3)|@local_cuda//:(cudart|cublas|cudnn)' \
    'megatron/tensor/|megatron/ops/cuda/|megatron/comm/nccl' CUDA
  foreign '^ *# *include [<"]nccl|@local_cuda//:nccl' 'megatron/comm/nccl|megatron/comm/BUILD' NCCL
)
count=$(edges | wc -l)
if [ -n "$problems" ]; then
  echo "$problems"
  exit 1
fi
[ "$count" -gt 0 ] || { echo "no dependency found under $root: is this the source tree?"; exit 1; }
echo "$count dependencies and includes, all of them downward"
