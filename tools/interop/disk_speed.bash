#!/usr/bin/env bash
# Measures how fast a disk is written and read, by our BlockFile (//megatron/base:block_file_benchmark),
# by passes over a file of optimizer states (//megatron/optim:state_file_benchmark), and by Debian's
# fio with blocks of the same size and as many on their way, in turn.
#
#   bash tools/interop/disk_speed.bash [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
directory=$(realpath "${1:-/tmp}")
command -v fio >/dev/null || { echo "fio is missing: apt-get install fio" >&2; exit 1; }
./bazelw build //megatron/base:block_file_benchmark //megatron/optim:state_file_benchmark
programs=$(./bazelw info bazel-bin 2>/dev/null)/megatron

run_fio() {  # $1: write, read, or rw, which is as much of both at once; $2: blocks on their way
  fio --name="$1" --filename="$directory/fio_of_disk_speed" --rw="$1" --size=288m --bs=1m \
    --iodepth="$2" --ioengine=io_uring --direct=1 --fallocate=posix --time_based --runtime=3 \
    --output-format=json |
    python3 -c "
import json, sys
job = json.load(sys.stdin)['jobs'][0]
print('fio $1: %.2f GB/s' % ((job['read']['bw_bytes'] + job['write']['bw_bytes']) / 1e9))"
}

run_ours() {  # $1: program; $2: filter of its benchmarks
  BLOCK_FILE_DIRECTORY=$directory "$programs/$1" --benchmark_min_time=3 --benchmark_filter="$2" \
    2>/dev/null | grep -o 'BM_[A-Za-z]*\|GB/s=[^ ]*' | paste - -
}

for round in 1 2 3; do
  run_ours base/block_file_benchmark uring:1
  run_fio write 16
  run_fio read 16
  run_ours optim/state_file_benchmark .
  run_fio rw 24
done
rm -f "$directory/fio_of_disk_speed"
