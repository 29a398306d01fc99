// The contents of a checkpoint, described without any model, optimizer or layout.
#ifndef MEGATRON_CHECKPOINT_CHECKPOINT_STATE_H_
#define MEGATRON_CHECKPOINT_CHECKPOINT_STATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// This rank's block of a named global tensor: what it saves, or where it wants what was saved. One
// rank may hold several blocks of one tensor.
struct ShardedTensor {
  std::string name;
  Tensor tensor;  // contiguous, on the CPU; empty blocks have no elements
  Shape global_shape;
  Shape offset;  // start of the block in the global tensor
  // Ranks that hold the same block number themselves; only replica 0 writes.
  int replica = 0;
  // The writer of a tensor that is too large to be in memory all at once, which only saving has:
  // `tensor` is on the meta device, and when its turn comes this writes its values into memory of
  // that type and shape, which is zero.
  std::function<absl::Status(const Tensor& out)> source;
  // The same for a tensor whose elements can be written in pieces: this writes the elements from
  // `begin` on, row-major, into `out`, which is flat.
  std::function<absl::Status(int64_t begin, const Tensor& out)> elements;
};

// The state at the end of an iteration.
struct CheckpointState {
  // A hash of the run's effective config and data, 8 to 64 lower-case hexadecimal digits.
  // Checkpoints of one run replace and outlive each other; those of another run are never touched.
  std::string run_id;
  int64_t iteration = 0;
  std::vector<ShardedTensor> tensors;
  // Values that every rank knows; rank 0's are written. Names as IsValidName (manifest.h) allows.
  std::map<std::string, int64_t> ints;
  std::map<std::string, double> floats;
  std::map<std::string, std::string> strings;
};

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_CHECKPOINT_STATE_H_
