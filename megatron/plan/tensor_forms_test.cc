#include "megatron/plan/tensor_forms.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;

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
    model_.set_heads(96);
    model_.set_kv_heads(96);
    model_.set_head_dim(128);
    model_.set_vocab(51200);
    layout_.sequence = 2048;
    layout_.micro_batch = 16;
  }

  std::vector<TensorForm> Compare(int64_t ranks) {
    layout_.tp = ranks;
    const auto forms = CompareTensorForms(gpu_, program_, kernels_, model_, layout_);
    EXPECT_THAT(forms, IsOk());
    return *forms;
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

TEST_F(TensorFormsTest, LeavesOutGridsThatCannotCutTheModel) {
  model_.set_kv_heads(1);
  EXPECT_THAT(Names(Compare(4)), ElementsAre("1d"));
  model_.set_kv_heads(96);
  model_.set_hidden(12288 + 2);  // by 2, and not by 4
  EXPECT_THAT(Names(Compare(8)), ElementsAre("1d", "2.5d of depth 2"));
  model_.set_hidden(12288);
  layout_.cp = 2;
  EXPECT_THAT(Names(Compare(4)), ElementsAre("1d"));
  layout_.cp = 1;
  layout_.precision = PlanPrecision::kFp8;
  EXPECT_THAT(Names(Compare(4)), ElementsAre("1d"));
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
