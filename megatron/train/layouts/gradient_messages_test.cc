// Tests runs whose gradients are sent in 16 bits with a scale, and runs whose word table is summed
// by the rows that occur (optim/data_parallel.h).

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr int kSteps = 3;
constexpr int64_t kVocab = 1024, kHidden = 32;  // SmallLlama's hidden size
constexpr int64_t kTokens = 8 * CountingSource::kLength;

// A model with more words than occur in a step.
TrainerOptions SparseRun() {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  run.model.vocab_size = run.model.padded_vocab_size = kVocab;
  return run;
}

Layout LayoutOf(int tensor, int context, int pipeline, int data,
                DataSharding sharding = DataSharding::kNone) {
  Layout layout;
  layout.tensor = tensor;
  layout.sequence_parallel = tensor > 1;
  layout.context = context;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.sharding = sharding;
  return layout;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps = kSteps) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  return TrainOnLayout(run, how, CountingSource());
}

TrainerOptions ByRows(TrainerOptions run, int64_t most_rows) {
  run.data_parallel.sparse_table = "embedding.word_embeddings.weight";
  run.data_parallel.most_sparse_rows = most_rows;
  return run;
}

// The losses, the norms and all weights and states are the same bits.
TEST(GradientMessagesTest, ATableThatIsSummedByItsRowsTrainsTheSameBits) {
  for (Layout layout :
       {LayoutOf(1, 1, 1, 4), LayoutOf(1, 1, 1, 4, DataSharding::kStates),
        LayoutOf(2, 1, 1, 2, DataSharding::kStates), LayoutOf(1, 1, 2, 2), LayoutOf(1, 2, 1, 2)}) {
    for (const bool overlap : {false, true}) {
      layout.overlap = overlap;
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome plain = Train(SparseRun(), layout);
      EXPECT_THAT(plain.sent_gradients, IsEmpty());
      const LayoutOutcome sparse = Train(ByRows(SparseRun(), kTokens / layout.data), layout);
      EXPECT_EQ(sparse.losses, plain.losses);
      EXPECT_EQ(sparse.norms, plain.norms);
      EXPECT_TRUE(sparse.state == plain.state);
      EXPECT_EQ(sparse.sent_gradients.size(), kSteps);
      for (const double sent : sparse.sent_gradients) {
        EXPECT_GT(sent, 0);
        EXPECT_LE(sent, static_cast<double>(kTokens) / layout.data / kVocab);
      }
    }
  }
}

// A rank with more rows than are planned for, or than pay, has all sum the whole table.
TEST(GradientMessagesTest, TooManyRowsAreSummedWithAllOthers) {
  const Layout layout = LayoutOf(1, 1, 1, 4);
  const LayoutOutcome plain = Train(SparseRun(), layout),
                      sparse = Train(ByRows(SparseRun(), 2), layout);
  EXPECT_EQ(sparse.losses, plain.losses);
  EXPECT_TRUE(sparse.state == plain.state);
  EXPECT_THAT(sparse.sent_gradients, Each(1));
}

// docs/data_parallel.md has the formula.
TEST(GradientMessagesTest, BytesOfRowsAreThoseOfTheDocumentation) {
  constexpr int kRanks = 4;
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates}) {
    const Layout layout = LayoutOf(1, 1, 1, kRanks, sharding);
    const LayoutOutcome plain = Train(SparseRun(), layout, 1),
                        sparse = Train(ByRows(SparseRun(), kTokens / kRanks), layout, 1);
    const auto sent = [](const LayoutOutcome& outcome, Collective collective) {
      return outcome.sent->Of("dp-cp", collective);
    };
    const Collective sum =
        sharding == DataSharding::kNone ? Collective::kAllReduce : Collective::kReduceScatter;
    const int64_t passes = sharding == DataSharding::kNone ? 2 : 1;
    EXPECT_EQ(sent(plain, sum) - sent(sparse, sum),
              passes * (kRanks - 1) * 4 * kVocab * kHidden / kRanks);
    const int64_t gathered =
        sent(sparse, Collective::kAllGather) - sent(plain, Collective::kAllGather);
    // The number of rows, and the rows of the rank with most of them.
    const int64_t rows = gathered - (kRanks - 1) * 4, row = (kRanks - 1) * (4 + 4 * kHidden);
    EXPECT_EQ(rows % row, 0);
    EXPECT_GE(static_cast<double>(rows) / static_cast<double>(row),
              sparse.sent_gradients[0] * kVocab);
    EXPECT_LE(rows / row, kTokens / kRanks);
  }
}

TrainerOptions RunIn(DType dtype, float scale) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  run.data_parallel.gradient_dtype = dtype;
  run.data_parallel.gradient_scale = scale;
  return run;
}

std::vector<Layout> LayoutsOf16Bits() {
  std::vector<Layout> layouts;
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates,
                                      DataSharding::kGradients, DataSharding::kWeights}) {
    layouts.push_back(LayoutOf(1, 1, 1, 2, sharding));
  }
  layouts.push_back(LayoutOf(1, 1, 1, 4, DataSharding::kStates));
  layouts.back().optimizer_instances = 2;
  layouts.push_back(LayoutOf(1, 1, 1, 4, DataSharding::kWeights));
  layouts.back().optimizer_instances = 2;
  return layouts;
}

TEST(GradientMessagesTest, Fp16TrainsAboutAsFp32WithAnyScale) {
  for (Layout layout : LayoutsOf16Bits()) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome plain = Train(RunIn(DType::kFloat32, 1), layout),
                        half = Train(RunIn(DType::kFloat16, 1024), layout);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(half.losses[step], plain.losses[step], 1e-3 * plain.losses[step]);
      EXPECT_NEAR(half.norms[step], plain.norms[step], 1e-2 * plain.norms[step]);
    }
    EXPECT_NE(half.norms, plain.norms);
    const LayoutOutcome other = Train(RunIn(DType::kFloat16, 2048), layout);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_NEAR(other.losses[step], half.losses[step], 1e-4 * plain.losses[step]);
    layout.overlap = true;
    const LayoutOutcome overlapped = Train(RunIn(DType::kFloat16, 1024), layout);
    EXPECT_EQ(overlapped.losses, half.losses);
    EXPECT_TRUE(overlapped.state == half.state);
  }
}

// A sum above the range of fp16 is no number, and such a step changes no weight.
TEST(GradientMessagesTest, AnOverflowInFp16IsASkippedStep) {
  for (const Layout& layout : LayoutsOf16Bits()) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome start = Train(RunIn(DType::kFloat16, 1), layout, 0),
                        skipped = Train(RunIn(DType::kFloat16, 1e9f), layout);
    for (const double norm : skipped.norms) EXPECT_FALSE(std::isfinite(norm));
    for (const auto& [name, tensor] : start.state) {
      if (absl::StartsWith(name, "optimizer.")) continue;
      EXPECT_TRUE(tensor == skipped.state.at(name)) << name;
    }
  }
}

}  // namespace
}  // namespace megatron
