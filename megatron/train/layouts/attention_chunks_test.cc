// Trains with attention in chunks, on context-parallel ranks and on one.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

LayoutOutcome Train(const ModelOptions& model, int64_t chunk, int ranks, int tensor = 1) {
  TrainerOptions options = TinyRun(model, OptimizerOptions::kSgd);
  options.model.transformer.recompute.attention_chunk_tokens = chunk;
  LayoutRun run;
  run.steps = 3;
  run.evaluate = true;
  run.layout.micro_batch_size = 2;
  run.layout.context = ranks;
  run.layout.tensor = tensor;
  run.layout.context_parallel = ContextParallel::kAllToAll;
  CountingSource source;
  return TrainOnLayout(options, run, source);
}

// A micro-batch has 32 tokens of two samples. Masks of dropout are those of the tokens, wherever
// they are.
TEST(AttentionChunksTest, ContextParallelRanksTrainAsOneRankDoes) {
  ModelOptions llama = SmallLlama();
  llama.transformer.qk_norm = true;
  for (ModelOptions model : {SmallGpt2(), llama, SmallWindowed()}) {
    model.transformer.hidden_dropout = model.transformer.attention_dropout = 0.2f;
    const LayoutOutcome one = Train(model, 0, 1);
    for (const int64_t chunk : {8, 24, 64}) {
      SCOPED_TRACE(absl::StrCat("chunks of ", chunk));
      ExpectSameCurve(Train(model, chunk, 2), one);
    }
  }
}

TEST(AttentionChunksTest, TensorAndContextParallelRanksTrainAsOneRankDoes) {
  ModelOptions windowed = SmallWindowed();
  windowed.transformer.num_query_groups = 4;
  for (const ModelOptions& model : {SmallGpt2(), windowed})
    ExpectSameCurve(Train(model, 8, 2, 2), Train(model, 0, 1));
}

}  // namespace
}  // namespace megatron
