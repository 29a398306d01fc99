#!/usr/bin/env bash
# Usage: layering_test_test.sh LAYERING_TEST
# Small trees with one fault each, which the layering test must find.
set -eu
layering_test=$PWD/$1
failed=0

new_tree() {
  tree=$(mktemp -d "$TEST_TMPDIR/tree.XXXXXX")
  mkdir -p "$tree"/megatron/{base,tensor,ops/cuda,comm,layers,data} "$tree/tools"
  touch "$tree/WORKSPACE"
  echo 'deps = ["//megatron/base:status"], visibility = ["//megatron:__subpackages__"],' \
    >"$tree/megatron/tensor/BUILD"
  echo '#include "megatron/tensor/tensor.h"' >"$tree/megatron/layers/linear.cc"
}

expect() {  # $1: what is tried, $2: text of the complaint, or nothing for a tree that is fine
  local output
  if output=$("$layering_test" "$tree/WORKSPACE" 2>&1); then
    [ -z "$2" ] || { echo "FAILED: $1 was not found"; failed=1; }
  elif [ -z "$2" ] || ! grep -qF "$2" <<<"$output"; then
    echo "FAILED: $1: $output"
    failed=1
  fi
}

new_tree
expect "a tree without fault" ""

new_tree
echo 'deps = ["//megatron/layers:linear"],' >>"$tree/megatron/tensor/BUILD"
expect "an upward dependency" "megatron/tensor/BUILD:2: tensor does not stand on layers"

new_tree
echo 'deps = ["@megatron//megatron/comm"],' >>"$tree/megatron/ops/BUILD"
expect "an upward dependency by a full label" "ops does not stand on comm"

new_tree
printf '\n#include "megatron/tensor/tensor.h"\n' >"$tree/megatron/data/dataset.h"
expect "an include of a neighbour" "megatron/data/dataset.h:2: data does not stand on tensor"

new_tree
echo 'deps = ["//tools:plan"],' >>"$tree/megatron/layers/BUILD"
expect "a dependency on tools" "depends on tools"

new_tree
echo 'deps = ["//megatron/attic:old"],' >>"$tree/megatron/layers/BUILD"
expect "a room that does not exist" "no such room"

new_tree
echo '#include <cuda_runtime.h>' >"$tree/megatron/layers/linear.h"
expect "CUDA among the layers" "CUDA does not belong here"

new_tree
echo '#include <cuda_runtime.h>' >"$tree/megatron/ops/cuda/gemm.h"
expect "CUDA where it belongs" ""

new_tree
echo '#include <nccl.h>' >"$tree/megatron/comm/tcp.h"
expect "NCCL in another communicator" "NCCL does not belong here"

new_tree
echo '# deps = ["//megatron/layers:linear"]' >>"$tree/megatron/tensor/BUILD"
expect "a comment" ""

new_tree
rm -r "$tree/megatron"/*/*
expect "an empty tree" "no dependency found"

exit $failed
