// A BlockEngine that plays the kernel, for tests of what stands on a BlockFile.
#ifndef MEGATRON_BASE_SCRIPTED_ENGINE_H_
#define MEGATRON_BASE_SCRIPTED_ENGINE_H_

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/block_engine.h"
#include "megatron/base/block_file.h"

namespace megatron {

// Transfers happen when they are waited for, the newest first, and as a script says: script(block)
// returns the number of bytes to move, or a negated errno.
class ScriptedEngine : public BlockEngine {
 public:
  using Script = std::function<int64_t(const Block&)>;
  ScriptedEngine(int fd, Script script) : fd_(fd), script_(std::move(script)) {}

  std::string name() const override { return "a script"; }
  int capacity() const override { return 4; }
  void Start(const Block& block) override {
    EXPECT_LT(static_cast<int>(started_.size()), capacity());
    started_.push_back(block);
  }
  BlockResult Wait() override {
    const Block block = started_.back();
    started_.pop_back();
    const int64_t moves = script_(block);
    if (moves <= 0) return {block.tag, moves};
    return {block.tag, block.is_write ? pwrite(fd_, block.memory, moves, block.offset)
                                      : pread(fd_, block.memory, moves, block.offset)};
  }

 private:
  const int fd_;
  const Script script_;
  std::vector<Block> started_;
};

// Returns a file at the path, of `bytes` zeros, whose transfers are cut into blocks and follow the
// script.
inline std::unique_ptr<BlockFile> ScriptedBlockFile(const std::string& path, int64_t bytes,
                                                    int64_t block_bytes,
                                                    ScriptedEngine::Script script) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(ftruncate(fd, bytes), 0);
  unlink(path.c_str());
  BlockFileOptions options;
  options.block_bytes = block_bytes;
  return std::make_unique<BlockFile>(
      path, fd, bytes, std::make_unique<ScriptedEngine>(fd, std::move(script)), options);
}

}  // namespace megatron

#endif  // MEGATRON_BASE_SCRIPTED_ENGINE_H_
