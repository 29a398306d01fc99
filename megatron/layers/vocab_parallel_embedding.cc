#include "megatron/layers/vocab_parallel_embedding.h"

#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/embedding.h"

namespace megatron {

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& name, int64_t padded_vocab_size,
                                               int64_t hidden_size, float init_std,
                                               const ProcessGroup& tensor_group) {
  weight_.name = name;
  weight_.sharding = SplitOverTensor({padded_vocab_size, hidden_size}, 0, tensor_group.size(),
                                     tensor_group.rank());
  weight_.initializer = Initializer::Normal(init_std);
}

void VocabParallelEmbedding::Forward(const LayerContext& ctx, const Tensor& tokens_T,
                                     const Tensor& y_TH) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor summand_TH = SummandOf(ctx, y_TH);
  ops::EmbeddingForward(ctx.stream, tokens_T, weight_.data, first_row(), /*accumulate=*/false,
                        summand_TH);
  Reduce(ctx, summand_TH, y_TH);
}

void VocabParallelEmbedding::Backward(const LayerContext& ctx, const Tensor& tokens_T,
                                      const Tensor& dy_TH) {
  Arena::Scope scope(ctx.scratch);
  ops::EmbeddingBackward(ctx.stream, tokens_T, Gather(ctx, dy_TH), first_row(), weight_.grad);
}

}  // namespace megatron
