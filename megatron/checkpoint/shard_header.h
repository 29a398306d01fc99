// The first bytes of a shard file: they tie it to one run, one iteration and one place in the save,
// so that files of two saves cannot be mixed up unnoticed. Layout: docs/checkpoint_format.md.
#ifndef MEGATRON_CHECKPOINT_SHARD_HEADER_H_
#define MEGATRON_CHECKPOINT_SHARD_HEADER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

inline constexpr int64_t kShardHeaderBytes = 128;

struct ShardHeader {
  std::string run_id;
  int64_t iteration = 0;
  int index = 0;
  int count = 0;
  int64_t file_bytes = 0;

  friend bool operator==(const ShardHeader& a, const ShardHeader& b) {
    return a.run_id == b.run_id && a.iteration == b.iteration && a.index == b.index &&
           a.count == b.count && a.file_bytes == b.file_bytes;
  }
};

// Returns "shard 3 of 8 of iteration 100 of run 0123abcd", for messages.
std::string ToString(const ShardHeader& header);

// Returns exactly kShardHeaderBytes.
std::string EncodeShardHeader(const ShardHeader& header);

// Any bytes are safe. kDataLoss where they are not a header that EncodeShardHeader gives.
absl::StatusOr<ShardHeader> DecodeShardHeader(absl::string_view bytes);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_SHARD_HEADER_H_
