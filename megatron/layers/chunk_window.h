// ChunkWindow: the device's memory for some rows of a tensor that lies in host memory.
//
//   ChunkWindow keys(ctx, keys_T, /*rows=*/4096, "keys");
//   keys.Bring(0, 4096);                // the copy begins, beside what the stream does
//   ...
//   const Tensor k = keys.Await();      // the stream's operations from now on find the rows in k
//
//   const Tensor k = keys.Begin(0, 4096);   // the rows may be written
//   ...
//   keys.Send();                            // the copy to the host begins
//
// Where the tensor is on the device, a window is a view of it, and nothing is copied.
#ifndef MEGATRON_LAYERS_CHUNK_WINDOW_H_
#define MEGATRON_LAYERS_CHUNK_WINDOW_H_

#include <cstdint>

#include "megatron/layers/host_copies.h"
#include "megatron/layers/layer_context.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class ChunkWindow {
 public:
  // `whole` is contiguous, and on the host where ctx.host_copies is set. The memory for up to
  // `rows` rows is then taken from ctx.scratch; ctx.host_copies->AwaitAll() must be called before
  // the caller's scope gives it back. `name` is a literal.
  ChunkWindow(const LayerContext& ctx, const Tensor& whole, int64_t rows, const char* name);

  // Begins to bring the rows [begin, end) in place of those that are here, once the stream has used
  // these.
  void Bring(int64_t begin, int64_t end);
  // Returns the rows of the last Bring or Begin.
  Tensor Await() const;
  // Returns memory for the rows [begin, end), which have no content yet.
  Tensor Begin(int64_t begin, int64_t end);
  // Begins to send the rows. Until the next Bring or Begin they are here, and not written.
  void Send();

 private:
  Tensor Here() const;
  Tensor There() const { return whole_.Slice(0, begin_, end_); }

  HostCopies* copies_;
  Tensor whole_;
  Tensor memory_;  // empty where `whole` is on the device
  const char* name_;
  int64_t begin_ = 0, end_ = 0;
  HostCopies::Copy copy_;  // the last one
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_CHUNK_WINDOW_H_
