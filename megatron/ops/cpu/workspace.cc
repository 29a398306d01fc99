#include "megatron/ops/cpu/workspace.h"

#include <cstdlib>

#include "megatron/base/aligned_memory.h"
#include "megatron/base/out_of_memory.h"

namespace megatron::ops {
namespace {

constexpr int64_t kAlignment = 64;

class Block {
 public:
  ~Block() { std::free(data_); }

  float* AtLeast(int64_t count) {
    if (count > count_) {
      std::free(data_);
      const int64_t bytes = count * int64_t{sizeof(float)};
      data_ = static_cast<float*>(AllocateAligned(bytes, kAlignment));
      if (data_ == nullptr) EndForWantOfMemory(bytes, "a workspace of kernels");
      count_ = count;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t count_ = 0;
};

thread_local Block blocks[2];

}  // namespace

float* Workspace(WorkspaceKind kind, int64_t count) {
  return blocks[static_cast<int>(kind)].AtLeast(count);
}

}  // namespace megatron::ops
