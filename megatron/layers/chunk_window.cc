#include "megatron/layers/chunk_window.h"

#include <algorithm>
#include <vector>

namespace megatron {

ChunkWindow::ChunkWindow(const LayerContext& ctx, const Tensor& whole, int64_t rows,
                         const char* name)
    : copies_(ctx.host_copies), whole_(whole), name_(name) {
  if (copies_ == nullptr) return;
  std::vector<int64_t> dims = whole.shape().dims();
  dims[0] = std::min(rows, dims[0]);
  memory_ = ctx.scratch->Allocate(whole.dtype(), Shape(dims), name);
}

Tensor ChunkWindow::Here() const {
  return copies_ == nullptr ? There() : memory_.Slice(0, 0, end_ - begin_);
}

void ChunkWindow::Bring(int64_t begin, int64_t end) {
  begin_ = begin;
  end_ = end;
  if (copies_ != nullptr) copy_ = copies_->Start(name_, There(), Here(), copy_);
}

Tensor ChunkWindow::Await() const {
  if (copies_ != nullptr) copies_->Await(copy_);
  return Here();
}

Tensor ChunkWindow::Begin(int64_t begin, int64_t end) {
  begin_ = begin;
  end_ = end;
  return Await();
}

void ChunkWindow::Send() {
  if (copies_ != nullptr) copy_ = copies_->Start(name_, Here(), There(), copy_);
}

}  // namespace megatron
