// What moves blocks between a file and memory, several at once: the kernel's io_uring, or threads
// that read and write. BlockFile (block_file.h) stands on it.
#ifndef MEGATRON_BASE_BLOCK_ENGINE_H_
#define MEGATRON_BASE_BLOCK_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace megatron {

struct Block {
  bool is_write = false;
  int64_t offset = 0;  // place in the file
  char* memory = nullptr;
  int64_t bytes = 0;
  uint64_t tag = 0;  // comes back with the result
};

// The end of a block's transfer, as read() and write() tell it: the number of bytes that moved,
// which may be fewer than were asked for, or the negated errno.
struct BlockResult {
  uint64_t tag = 0;
  int64_t value = 0;
};

// Used by one thread at a time. Destroyed only after all blocks have ended.
class BlockEngine {
 public:
  virtual ~BlockEngine() = default;

  // "io_uring" or "threads".
  virtual std::string name() const = 0;
  // The most blocks that may be on their way.
  virtual int capacity() const = 0;
  // Starts a block; fewer than capacity() are on their way. Its memory stays until it has ended.
  virtual void Start(const Block& block) = 0;
  // Waits until a block that was started has ended. One is on its way.
  virtual BlockResult Wait() = 0;
};

// Returns an engine for the open file `fd`, which outlives it. Fails where the system has no
// io_uring, forbids it, or has no memory for it.
absl::StatusOr<std::unique_ptr<BlockEngine>> MakeUringEngine(int fd, int capacity);

// Returns an engine of as many threads as blocks may be on their way.
std::unique_ptr<BlockEngine> MakeThreadEngine(int fd, int capacity);

}  // namespace megatron

#endif  // MEGATRON_BASE_BLOCK_ENGINE_H_
