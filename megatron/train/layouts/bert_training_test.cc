// BERT trained on layouts: samples of any length, packed, on any number of ranks.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

constexpr int kSteps = 6;

LayoutOutcome Train(const ModelOptions& model, const Layout& layout) {
  return TrainSentences(model, layout, kSteps, PairSource());
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  ExpectSameTraining(got, want, [](const std::string& name) {
    // The gradient of the keys' biases is nothing but rounding error.
    if (absl::EndsWith(name, "linear_qkv.bias")) return Comparison::kNone;
    // The biases of the sentence-order head start at zero, and the gradients of samples in the two
    // orders nearly cancel in them.
    const bool of_order = name == "binary_head.bias" || name == "pooler.dense.bias";
    return of_order ? Comparison::kAbsolute : Comparison::kRelative;
  });
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts(11);
  layouts[0].micro_batch_size = 8;
  layouts[1].tensor = layouts[1].data = layouts[1].pipeline = 2;
  layouts[1].sharding = DataSharding::kStates;
  layouts[2] = layouts[1];
  layouts[2].sequence_parallel = true;
  layouts[2].micro_batch_size = 2;
  layouts[3].pipeline = 2;
  layouts[3].chunks = 2;
  layouts[4].tensor = 4;
  layouts[4].sequence_parallel = true;
  layouts[4].micro_batch_size = 4;
  layouts[5].pipeline = 4;
  layouts[5].data = 2;
  layouts[5].sharding = DataSharding::kWeights;
  layouts[6].context = layouts[6].data = 2;
  layouts[6].micro_batch_size = 2;
  layouts[6].sharding = DataSharding::kWeights;
  layouts[6].overlap = true;
  layouts[7].tensor = layouts[7].context = layouts[7].pipeline = 2;
  layouts[7].sequence_parallel = true;
  layouts[7].context_parallel = ContextParallel::kGather;
  layouts[8].tensor = layouts[8].context = layouts[8].data = 2;
  layouts[8].context_parallel = ContextParallel::kAllToAll;
  layouts[8].sharding = DataSharding::kStates;
  layouts[8].overlap = true;
  layouts[9].context = 4;
  layouts[9].pipeline = 2;
  layouts[9].micro_batch_size = 8;
  layouts[10].context = 4;
  layouts[10].context_parallel = ContextParallel::kHierarchical;
  layouts[10].context_team_size = layouts[10].data = 2;
  return layouts;
}

TEST(BertTrainingTest, EveryLayoutTrainsWhatOneRankTrains) {
  ModelOptions without_order = SmallPostNormBert();
  without_order.sentence_order_head = false;
  for (const ModelOptions& model : {SmallBert(), SmallPostNormBert(), without_order}) {
    SCOPED_TRACE(model.transformer.post_norm);
    const LayoutOutcome alone = Train(model, Layout());
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(ToString(layout));
      ExpectTheSame(Train(model, layout), alone);
    }
  }
}

// Samples of two sequences, of which one is the right one.
class ChoiceSource : public SampleSource {
 public:
  int64_t size() const override { return pairs_.size() / 2; }

  absl::Status Get(int64_t index, Sample* sample) const override {
    *sample = Sample();
    for (int64_t choice = 0; choice < 2; ++choice) {
      Sample sequence;
      MEGATRON_RETURN_IF_ERROR(pairs_.Get(2 * index + choice, &sequence));
      const auto length = static_cast<int64_t>(
          std::min<size_t>(sequence.tokens.size(), CountingSource::kLength / 2));
      sample->document_starts.push_back(static_cast<int32_t>(sample->tokens.size()));
      const auto append = [&](const std::vector<int32_t>& from, std::vector<int32_t>* to) {
        to->insert(to->end(), from.begin(), from.begin() + length);
      };
      append(sequence.tokens, &sample->tokens);
      append(sequence.types, &sample->types);
      append(sequence.positions, &sample->positions);
    }
    sample->labels.assign(sample->tokens.size(), -1);
    sample->loss_mask.assign(sample->tokens.size(), 0);
    sample->sequence_class = static_cast<int32_t>(index % 3 == 0);
    return absl::OkStatus();
  }

 private:
  PairSource pairs_;
};

// Samples of two classes, of which one is more frequent, so that the gradients of the classes'
// biases do not cancel.
class ClassSource : public PairSource {
 public:
  absl::Status Get(int64_t index, Sample* sample) const override {
    MEGATRON_RETURN_IF_ERROR(PairSource::Get(index, sample));
    sample->sequence_class = static_cast<int32_t>(index % 3 == 0);
    return absl::OkStatus();
  }
};

// The gradient of the one bias of choices is nothing but rounding error.
void ExpectTheSameClassifier(const LayoutOutcome& got, const LayoutOutcome& want) {
  ExpectSameTraining(got, want, [](const std::string& name) {
    const bool is_noise =
        absl::EndsWith(name, "linear_qkv.bias") || name == "multichoice_head.bias";
    return is_noise ? Comparison::kNone : Comparison::kRelative;
  });
}

TEST(BertTrainingTest, ClassifiersTrainOnEveryLayoutWhatTheyDoOnOneRank) {
  for (ModelOptions model : {SmallBert(), SmallPostNormBert()}) {
    SCOPED_TRACE(model.transformer.post_norm);
    model.num_classes = 2;
    const auto train = [&](const Layout& layout) {
      return TrainSentences(model, layout, kSteps, ClassSource());
    };
    const LayoutOutcome alone = train(Layout());
    EXPECT_EQ(alone.state.count("embedding.word_embeddings.weight"), 1u);
    EXPECT_EQ(alone.state.count("lm_head.dense.weight"), 0u);
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(ToString(layout));
      ExpectTheSameClassifier(train(layout), alone);
    }
  }
}

template <typename Source>
LayoutOutcome TrainSources(const ModelOptions& model, const Layout& layout) {
  TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  run.num_sources = SeveralSources<Source>::kSources;
  LayoutRun how;
  how.layout = layout;
  how.steps = 3;
  return TrainOnLayout(run, how, SeveralSources<Source>());
}

// A sequence, or a group of them, counts as often as its label does.
TEST(BertTrainingTest, SourcesOfClassifiersHaveTheirOwnLossesOnEveryLayout) {
  ModelOptions classes = SmallBert(), choices = SmallBert();
  classes.num_classes = 2;
  choices.num_classes = 1;
  choices.num_choices = 2;
  for (const ModelOptions& model : {classes, choices}) {
    const bool chooses = model.num_choices > 1;
    const auto train = chooses ? TrainSources<ChoiceSource> : TrainSources<ClassSource>;
    const LayoutOutcome alone = train(model, Layout());
    ExpectLossesOfSources(alone, alone);
    EXPECT_EQ(alone.sources[1][0].weight + alone.sources[1][1].weight + alone.sources[1][2].weight,
              8);
    for (const Layout& layout : Layouts()) {
      if (chooses && layout.context > 1) continue;
      SCOPED_TRACE(ToString(layout));
      ExpectLossesOfSources(train(model, layout), alone);
    }
  }
}

TEST(BertTrainingTest, ChoicesAreMadeOnEveryLayoutAsOnOneRank) {
  ModelOptions model = SmallBert();
  model.num_classes = 1;
  model.num_choices = 2;
  const LayoutOutcome alone = TrainSentences(model, Layout(), kSteps, ChoiceSource());
  for (const Layout& layout : Layouts()) {
    if (layout.context > 1) continue;
    SCOPED_TRACE(ToString(layout));
    ExpectTheSameClassifier(TrainSentences(model, layout, kSteps, ChoiceSource()), alone);
  }
}

// Models with experts in every layer, chosen by softmax, or with experts in every layer but the
// first, chosen by sigmoid and biases.
std::vector<ModelOptions> ModelsWithExperts() {
  std::vector<ModelOptions> models = {SmallBert(), SmallPostNormBert()};
  for (ModelOptions& model : models) {
    model.transformer.linear_bias = false;
    MoeOptions& moe = model.transformer.moe;
    moe.num_experts = 4;
    moe.ffn_hidden_size = 24;
    moe.aux_loss_coeff = 0.05f;
    moe.z_loss_coeff = 1e-3f;
  }
  MoeOptions& moe = models[1].transformer.moe;
  moe.layers.assign(8, true);
  moe.layers[0] = false;
  moe.router.score = ops::RouterScore::kSigmoid;
  moe.expert_bias = true;
  moe.shared_ffn_hidden_size = 24;
  moe.input_jitter_eps = 0.1f;
  return models;
}

TEST(BertTrainingTest, ExpertsTrainOnEveryLayoutWhatTheyDoOnOneRank) {
  for (const ModelOptions& model : ModelsWithExperts()) {
    SCOPED_TRACE(model.transformer.post_norm);
    const LayoutOutcome alone = Train(model, Layout());
    // The margin is above the rounding, about 1e-7, which could send a token to another expert.
    EXPECT_GT(alone.smallest_margin, 3e-6);
    EXPECT_LT(alone.smallest_margin, 0.1) << "nobody looked";
    for (Layout layout : Layouts()) {
      const int ranks = layout.tensor * layout.context * layout.data;
      layout.expert = std::min(2, ranks);
      layout.expert_tensor = std::min(2, ranks / layout.expert);
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome outcome = Train(model, layout);
      ExpectTheSame(outcome, alone);
      for (size_t i = 0; i < alone.losses.size(); ++i) {
        EXPECT_NEAR(outcome.balances[i], alone.balances[i], 1e-5) << "step " << i;
        EXPECT_NEAR(outcome.z_losses[i], alone.z_losses[i], 1e-5) << "step " << i;
        EXPECT_GE(outcome.balances[i], 0.9);
      }
    }
  }
}

}  // namespace
}  // namespace megatron
