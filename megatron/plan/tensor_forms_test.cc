#include "megatron/plan/tensor_forms.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/predict_rows.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/tensor_cuts.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TensorFormsTest : public ::testing::Test {
 protected:
  TensorFormsTest() {
    const auto facts = ParsePlanFacts(BuiltInPlanFacts());
    EXPECT_THAT(facts, IsOk());
    gpu_ = **FindHardware(*facts, "GB200");
    program_ = **FindImplementation(*facts, "megatron_cc");
    const auto table = ParseCsv(BuiltInMeasuredKernels());
    EXPECT_THAT(table, IsOk());
    kernels_ = *MeasuredKernels::Parse(*table);
    model_.set_layers(96);
    model_.set_hidden(12288);
    model_.set_ffn(4 * 12288);
    model_.set_heads(128);
    model_.set_kv_heads(128);
    model_.set_head_dim(96);
    model_.set_vocab(51200);
    model_.set_is_tied(true);
    layout_.sequence = 2048;
    layout_.micro_batch = 32;
  }

  std::vector<TensorForm> Compare(int64_t ranks) {
    layout_.tp = ranks;
    return CompareTensorForms(gpu_, program_, kernels_, model_, layout_);
  }

  double SecondsOf(const PlanGrid& grid, int64_t tokens) {
    PlanLayout layout = layout_;
    layout.grid = grid;
    layout.micro_batch = tokens / layout.sequence;
    return PredictStep(gpu_, program_, kernels_, model_, layout)->seconds.total;
  }

  Hardware gpu_;
  Implementation program_;
  MeasuredKernels kernels_;
  PlanModel model_;
  PlanLayout layout_;
};

std::vector<std::string> Names(const std::vector<TensorForm>& forms) {
  std::vector<std::string> names;
  for (const TensorForm& form : forms) names.push_back(form.name());
  return names;
}

std::vector<std::string> Refusals(const std::vector<TensorForm>& forms) {
  std::vector<std::string> refusals;
  for (const TensorForm& form : forms) refusals.push_back(form.refusal);
  return refusals;
}

TEST_F(TensorFormsTest, FindsAllGridsThatTheRanksForm) {
  EXPECT_THAT(Names(Compare(1)), ElementsAre("1d"));
  EXPECT_THAT(Names(Compare(2)), ElementsAre("1d"));
  EXPECT_THAT(Names(Compare(4)), ElementsAre("1d", "2d"));
  EXPECT_THAT(Names(Compare(8)), ElementsAre("1d", "2.5d of depth 2", "3d"));
  EXPECT_THAT(Names(Compare(12)), ElementsAre("1d", "2.5d of depth 3"));
  EXPECT_THAT(Names(Compare(16)), ElementsAre("1d", "2d", "2.5d of depth 4"));
  EXPECT_THAT(Names(Compare(64)),
              ElementsAre("1d", "2d", "2.5d of depth 4", "2.5d of depth 16", "3d"));
}

TEST_F(TensorFormsTest, SaysWhyRanksCanNotHaveAForm) {
  EXPECT_THAT(Refusals(Compare(64)), Each(IsEmpty()));
  model_.set_kv_heads(1);
  EXPECT_THAT(Refusals(Compare(4)),
              ElementsAre("", "1 groups of queries can't be shared out over 2 rows and columns"));
  model_.set_kv_heads(96);
  model_.set_heads(96);
  std::vector<TensorForm> forms = Compare(64);
  EXPECT_EQ(forms[0].refusal, "96 heads can't be shared out over 64 tensor-parallel ranks");
  EXPECT_EQ(forms[0].seconds, 0);
  EXPECT_EQ(forms[2].refusal, "");
  EXPECT_GT(forms[2].seconds, 0);
  // There is no step of 1D beside which another is shorter.
  EXPECT_FALSE(forms[2].faster_from.has_value());
  EXPECT_TRUE(forms[2].less_from.has_value());
  model_.set_heads(128);
  model_.set_kv_heads(128);
  model_.set_hidden(12288 + 2);  // by 2, and not by 4
  EXPECT_THAT(Refusals(Compare(8)), ElementsAre("", "", HasSubstr("12290 hidden channels")));
  model_.set_hidden(12288);
  layout_.cp = 2;
  EXPECT_THAT(Refusals(Compare(4)), ElementsAre("", HasSubstr("context parallelism")));
  layout_.cp = 1;
  layout_.precision = PlanPrecision::kFp8;
  EXPECT_THAT(Refusals(Compare(4)), ElementsAre("", HasSubstr("products of 8 or 4 bits")));
  layout_.precision = PlanPrecision::k16Bits;
  model_.set_experts(8);
  model_.set_expert_ffn(4096);
  model_.set_experts_per_token(2);
  EXPECT_THAT(Refusals(Compare(4)), ElementsAre("", HasSubstr("experts")));
}

// Other micro-batches than the layout's can have the form.
TEST_F(TensorFormsTest, RefusesAMicroBatchThatTheRowsCanNotShare) {
  layout_.micro_batch = 8;
  const std::vector<TensorForm> forms = Compare(64);
  EXPECT_EQ(forms.back().refusal,
            "8 samples of a micro-batch can't be shared out over 16 rows on all levels");
  EXPECT_EQ(forms.back().memory_bytes, 0);
  EXPECT_EQ(forms.back().less_from, 4573);
  EXPECT_TRUE(forms.back().faster_from.has_value());
}

// A table of runs and this comparison take the same for the same assumptions.
TEST_F(TensorFormsTest, OneDimensionIsThatOfARowOfATable) {
  const auto rows = ParseCsv(
      "model,layers,hidden,heads,gpu,gpus,tp,tp_mode,seq,mbs,microbatches,implementation\n"
      "x,96,12288,128,GB200,8,8,1d,2048,16,1,megatron_cc\n"
      "x,96,12288,128,GB200,8,8,3d,2048,16,1,megatron_cc\n");
  ASSERT_THAT(rows, IsOk());
  const auto facts = ParsePlanFacts(BuiltInPlanFacts());
  const auto predicted = PredictRows(*facts, kernels_, *rows, {});
  ASSERT_THAT(predicted, IsOk());
  const auto memory = static_cast<size_t>(
      std::find(predicted->columns.begin(), predicted->columns.end(), "predicted_memory_GiB") -
      predicted->columns.begin());
  layout_.micro_batch = 16;
  layout_.tp = 8;
  layout_.grid = *GridOfMode("3d", 8, 1);
  const std::vector<TensorForm> forms = Compare(8);
  EXPECT_TRUE(forms[0].is_sequence_parallel);
  EXPECT_EQ(absl::StrFormat("%.5g", forms[0].memory_bytes / (1 << 30)), predicted->rows[0][memory]);
  EXPECT_EQ(absl::StrFormat("%.5g", forms[2].memory_bytes / (1 << 30)), predicted->rows[1][memory]);
  // Where the layout is 1D, it says itself whether rows are shared out.
  layout_.grid = PlanGrid();
  EXPECT_FALSE(Compare(8)[0].is_sequence_parallel);
  // Inputs of products are gathered twice more, of which there are eight halves of all-reduces.
  EXPECT_DOUBLE_EQ(forms[0].received, Compare(8)[0].received * 10 / 8);
  EXPECT_LT(forms[2].less_from, Compare(8)[2].less_from);
  EXPECT_GT(Compare(8)[0].memory_bytes, forms[0].memory_bytes);
}

// The step is shorter from the number of tokens on, and not with a unit of samples less.
TEST_F(TensorFormsTest, SaysFromWhenOnAGridIsFaster) {
  int found = 0;
  for (const int64_t ranks : {8, 64}) {
    const std::vector<TensorForm> forms = Compare(ranks);
    for (const TensorForm& form : forms) {
      if (!form.faster_from.has_value()) continue;
      ++found;
      const int64_t from = *form.faster_from, unit = form.samples * layout_.sequence;
      EXPECT_EQ(from % unit, 0) << form.name();
      EXPECT_LT(SecondsOf(form.grid, from), SecondsOf(PlanGrid(), from)) << form.name();
      if (from == unit) continue;
      EXPECT_GE(SecondsOf(form.grid, from - unit), SecondsOf(PlanGrid(), from - unit))
          << form.name();
    }
  }
  EXPECT_GE(found, 4);
}

TEST_F(TensorFormsTest, HasTheBytesAndTheStepOfTheLayout) {
  const std::vector<TensorForm> forms = Compare(64);
  const int64_t tokens = layout_.micro_batch * layout_.sequence;
  for (const TensorForm& form : forms) {
    EXPECT_DOUBLE_EQ(form.seconds, SecondsOf(form.grid, tokens)) << form.name();
    // A table of docs/tensor_grid.md has them: a cube is less from 4573 tokens on.
    if (form.grid.is_cube) {
      EXPECT_EQ(form.less_from, 4573);
      EXPECT_EQ(form.samples, 16);
    }
  }
  EXPECT_FALSE(forms[0].less_from.has_value());
  EXPECT_LT(forms.back().received, forms[0].received);
  // Half of the tokens are half of the bytes in 1D, and more on a grid, whose weights stay.
  layout_.micro_batch /= 2;
  const std::vector<TensorForm> half = Compare(64);
  EXPECT_DOUBLE_EQ(half[0].received, forms[0].received / 2);
  EXPECT_GT(half.back().received, forms.back().received / 2);
}

}  // namespace
}  // namespace megatron
