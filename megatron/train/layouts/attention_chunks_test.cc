// Trains with attention in chunks, on context-parallel ranks and on one.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

LayoutOutcome Train(const ModelOptions& model, int64_t chunk, int ranks, int tensor = 1,
                    bool sequence_parallel = false,
                    ContextParallel form = ContextParallel::kAllToAll) {
  TrainerOptions options = TinyRun(model, OptimizerOptions::kSgd);
  options.model.transformer.recompute.attention_chunk_tokens = chunk;
  LayoutRun run;
  run.steps = 3;
  run.evaluate = true;
  run.layout.micro_batch_size = 2;
  run.layout.context = ranks;
  run.layout.tensor = tensor;
  run.layout.sequence_parallel = sequence_parallel;
  run.layout.context_parallel = form;
  CountingSource source;
  return TrainOnLayout(options, run, source);
}

// A micro-batch has 32 tokens of two samples. Masks of dropout are those of the tokens, wherever
// they are.
TEST(AttentionChunksTest, ContextParallelRanksTrainAsOneRankDoes) {
  ModelOptions llama = SmallLlama();
  llama.transformer.qk_norm = true;
  for (ModelOptions model : {SmallGpt2(), llama, SmallWindowed(), SmallLatent()}) {
    model.transformer.hidden_dropout = model.transformer.attention_dropout = 0.2f;
    const LayoutOutcome one = Train(model, 0, 1);
    for (const int64_t chunk : {8, 24, 64}) {
      SCOPED_TRACE(absl::StrCat("chunks of ", chunk));
      ExpectSameCurve(Train(model, chunk, 2), one);
    }
  }
}

// Where keys are gathered, ranks need not divide the groups.
TEST(AttentionChunksTest, RanksThatGatherKeysTrainAsOneRankDoes) {
  ModelOptions llama = SmallLlama();
  llama.transformer.qk_norm = true;
  ModelOptions one_group = SmallLlama();
  one_group.transformer.num_query_groups = 1;
  for (ModelOptions model : {SmallGpt2(), llama, SmallWindowed(), SmallLatent(), one_group}) {
    model.transformer.hidden_dropout = model.transformer.attention_dropout = 0.2f;
    const LayoutOutcome one = Train(model, 0, 1);
    for (const int ranks : {2, 4}) {
      for (const int64_t chunk : {16, 32, 64}) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, chunks of ", chunk));
        const LayoutOutcome all = Train(model, chunk, ranks, 1, false, ContextParallel::kGather);
        ExpectSameCurve(all, one);
        // Those that keep their own keys alone gather the same ones.
        const LayoutOutcome own = Train(model, chunk, ranks, 1, false, ContextParallel::kRing);
        EXPECT_EQ(own.losses, all.losses);
        EXPECT_EQ(own.norms, all.norms);
        EXPECT_EQ(own.state, all.state);
        EXPECT_LT(own.memory.at("activations/saved"), all.memory.at("activations/saved"));
      }
    }
    for (const bool sequence_parallel : {false, true}) {
      if (model.transformer.num_query_groups % 2 != 0) continue;
      for (const ContextParallel form : {ContextParallel::kGather, ContextParallel::kRing})
        ExpectSameCurve(Train(model, 16, 2, 2, sequence_parallel, form), one);
    }
  }
}

TEST(AttentionChunksTest, RanksThatGatherKeysHaveSinksAndRecomputation) {
  ModelOptions model = SmallLlama();
  model.transformer.sink = AttentionSink::kLearned;
  const LayoutOutcome one = Train(model, 0, 1);
  for (const bool recomputes : {false, true}) {
    model.transformer.recompute.core_attention = recomputes;
    for (const ContextParallel form : {ContextParallel::kGather, ContextParallel::kRing})
      ExpectSameCurve(Train(model, 16, 2, 1, false, form), one);
  }
}

TEST(AttentionChunksTest, TensorAndContextParallelRanksTrainAsOneRankDoes) {
  ModelOptions windowed = SmallWindowed();
  windowed.transformer.num_query_groups = 4;
  ModelOptions without_q_latent = SmallLatent();
  without_q_latent.transformer.latent.q_rank = 0;
  for (const ModelOptions& model : {SmallGpt2(), windowed, SmallLatent(), without_q_latent}) {
    const LayoutOutcome one = Train(model, 0, 1);
    for (const bool sequence_parallel : {false, true})
      ExpectSameCurve(Train(model, 8, 2, 2, sequence_parallel), one);
  }
}

// Sums over tensor-parallel ranks add the same numbers in the same order, whether all of them get
// the rows or each of them gets its own.
TEST(AttentionChunksTest, SequenceParallelRanksHaveTheFirstLossOfTensorParallelOnes) {
  ModelOptions llama = SmallLlama();
  llama.transformer.qk_norm = true;
  for (const ModelOptions& model : {SmallGpt2(), llama, SmallWindowed(), SmallLatent()}) {
    const LayoutOutcome one = Train(model, 0, 1);
    for (const int64_t chunk : {8, 24, 64}) {
      const LayoutOutcome with = Train(model, chunk, 1, 2, true),
                          without = Train(model, chunk, 1, 2);
      EXPECT_EQ(with.losses[0], without.losses[0]) << chunk;
      ExpectSameCurve(with, one);
    }
  }
}

}  // namespace
}  // namespace megatron
