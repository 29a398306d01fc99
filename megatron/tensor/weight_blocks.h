// The contract between a stage, which uses its parameters block by block (Parameter::block), and
// the owner of their memory, which may have shared it out over ranks: weights may be gathered for a
// use and dropped after it, gradients be reduced as soon as they are complete.
//
//   WeightsInUse weights(ctx.blocks, block, next);   // forward, or backward of the inputs
//   GradientsInUse gradients(ctx.blocks, block);     // backward of the weights
//
// All ranks that share the memory make the same calls in the same order.
#ifndef MEGATRON_TENSOR_WEIGHT_BLOCKS_H_
#define MEGATRON_TENSOR_WEIGHT_BLOCKS_H_

namespace megatron {

class WeightBlocks {
 public:
  static constexpr int kNone = -1;

  virtual ~WeightBlocks() = default;

  // Makes the block's Parameter::data available until Release was called as often. `next` is the
  // block that will be acquired next, or kNone where that is not known: it may be fetched in the
  // meantime.
  virtual void Acquire(int block, int next) = 0;
  virtual void Release(int block) = 0;

  // Lets backward add to the block's Parameter::grad until EndGradients. A block that is used
  // twice may begin twice.
  virtual void BeginGradients(int block) = 0;
  // Ends the gradients of a block, once for each micro-batch, after the last use of the block in
  // it.
  virtual void EndGradients(int block) = 0;

  // Whether all weights stay available after Release.
  virtual bool keeps_weights() const = 0;
  // Whether all gradients may be added to at any time before EndGradients.
  virtual bool keeps_gradients() const = 0;
};

class WeightsInUse {
 public:
  WeightsInUse(WeightBlocks* blocks, int block, int next = WeightBlocks::kNone)
      : blocks_(blocks), block_(block) {
    if (blocks_ != nullptr) blocks_->Acquire(block_, next);
  }
  ~WeightsInUse() {
    if (blocks_ != nullptr) blocks_->Release(block_);
  }
  WeightsInUse(const WeightsInUse&) = delete;
  WeightsInUse& operator=(const WeightsInUse&) = delete;

 private:
  WeightBlocks* blocks_;
  int block_;
};

class GradientsInUse {
 public:
  // `last`: the block is not used again in the micro-batch.
  GradientsInUse(WeightBlocks* blocks, int block, bool last = true)
      : blocks_(blocks), block_(block), last_(last) {
    if (blocks_ != nullptr) blocks_->BeginGradients(block_);
  }
  ~GradientsInUse() {
    if (blocks_ != nullptr && last_) blocks_->EndGradients(block_);
  }
  GradientsInUse(const GradientsInUse&) = delete;
  GradientsInUse& operator=(const GradientsInUse&) = delete;

 private:
  WeightBlocks* blocks_;
  int block_;
  bool last_;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_WEIGHT_BLOCKS_H_
