#!/usr/bin/env bash
# Measures how fast a disk is written and read, by our BlockFile (//megatron/base:block_file_benchmark)
# and by Debian's fio with blocks of the same size and as many on their way, in turn.
#
#   bash tools/interop/disk_speed.bash [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
directory=$(realpath "${1:-/tmp}")
command -v fio >/dev/null || { echo "fio is missing: apt-get install fio" >&2; exit 1; }
./bazelw build //megatron/base:block_file_benchmark
ours=$(./bazelw info bazel-bin 2>/dev/null)/megatron/base/block_file_benchmark

run_fio() {  # $1: write or read
  local file=$directory/fio_of_disk_speed
  fio --name="$1" --filename="$file" --rw="$1" --size=256m --bs=1m --iodepth=16 --ioengine=io_uring \
    --direct=1 --fallocate=posix --time_based --runtime=3 --output-format=json |
    python3 -c "
import json, sys
job = json.load(sys.stdin)['jobs'][0]['$1']
print('fio $1: %.2f GB/s' % (job['bw_bytes'] / 1e9))"
  [ "$1" = read ] && rm -f "$file"
  return 0
}

for round in 1 2 3; do
  BLOCK_FILE_DIRECTORY=$directory "$ours" --benchmark_min_time=3 --benchmark_filter=uring:1 \
    2>/dev/null | grep -o 'BM_[A-Za-z]*\|GB/s=[^ ]*' | paste - -
  run_fio write
  run_fio read
done
