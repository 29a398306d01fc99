#include "megatron/optim/qk_clip.h"

#include <cmath>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr int64_t kGroups = 2, kHeads = 2, kChannels = 3, kHidden = 5;
constexpr int64_t kPerGroup = kHeads + 2;
constexpr QkClipOptions kOptions = {true, 100, 0.25};
// Scores of two layers. Only those of group 0 of layer 1 are too large.
constexpr float kScores[2][kGroups * kHeads] = {{100, 3, 0, 99}, {50, 400, 100, 80}};

// The factor of row `s` of group `g` of a layer's projection.
double WantedFactor(int64_t layer, int64_t g, int64_t s) {
  if (layer == 0 || g == 1) return 1;
  if (s < kHeads) return std::pow(0.25, 0.25);
  return s == kHeads ? std::pow(0.25, 0.75) : 1;
}

// The projection of each layer: weight and bias, of which this rank has a block.
struct Model {
  Model(DType dtype, const Shape& offset, const Shape& local, const ProcessGroups& groups,
        DataSharding sharding)
      : model({}, dtype) {
    model.buffer_options.sharding = sharding;
    model.buffer_options.data = {groups.data_context_shards.size(),
                                 groups.data_context_shards.rank()};
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (const char* kind : {"weight", "bias"}) {
        Sharding place;
        place.global_shape = {kGroups, kPerGroup, kChannels};
        place.offset = offset;
        place.local_shape = local;
        if (kind[0] == 'w') {
          for (auto [shape, dim] : {std::pair(&place.global_shape, kHidden),
                                    {&place.offset, 0},
                                    {&place.local_shape, kHidden}}) {
            std::vector<int64_t> dims = shape->dims();
            dims.push_back(dim);
            *shape = Shape(dims);
          }
        }
        Parameter* const parameter =
            model.Add(absl::StrCat("layers.", layer, ".linear_qkv.", kind), place);
        parameter->attention_layer = layer;
      }
      model.Add(absl::StrCat("layers.", layer, ".other"), Replicated({4, 4}));
    }
    model.Build();
  }

  TestModel model;
};

struct Layout {
  int ranks = 1, tensor = 1;
  DataSharding sharding = DataSharding::kNone;
  DType dtype = DType::kFloat32;
};

// Each tensor rank has a group, or, with more ranks than groups, one of a group's query heads; the
// key and value stay with the first of the ranks then, which is enough for this test.
absl::Status ClipOn(const Layout& layout, const ProcessGroup& world) {
  ParallelSizes sizes;
  sizes.tensor = layout.tensor;
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                            MakeGroups(dense, expert, world.communicator()));
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const int rank = groups.tensor.rank();
  const int64_t sharing = std::max<int64_t>(1, layout.tensor / kGroups);
  Shape offset{0, 0, 0}, local{kGroups, kPerGroup, kChannels};
  if (layout.tensor > 1) {
    offset[0] = rank / sharing;
    local[0] = 1;
  }
  if (sharing > 1) {
    offset[1] = rank % sharing * 2;
    local[1] = 2;
  }
  Model mine(layout.dtype, offset, local, groups, layout.sharding);
  mine.model.buffers->InitializeWeights(9, stream);
  mine.model.Connect(groups, stream);
  mine.model.parallel->StartStep(1);
  mine.model.parallel->ShareWeights();
  mine.model.parallel->WaitForWeights();
  std::vector<std::vector<float>> before;
  for (const auto& parameter : mine.model.parameters) {
    const Buffer initial({}, parameter->sharding.local_shape.numel() * 4, "initial", nullptr);
    const Tensor x = initial.At(0, DType::kFloat32, parameter->sharding.local_shape);
    FillInitial(*parameter, 9, x);
    before.push_back(Floats(x));
  }

  QkClip clip(kOptions, 2, kGroups * kHeads, mine.model.buffers.get(), &mine.model.ledger);
  float* const scores = clip.largest_scores_LN().data<float>();
  for (int64_t i = 0; i < 8; ++i) scores[i] = 1e6f;
  clip.StartStep(stream);
  // Each rank has seen the scores of some heads.
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(scores[i], 0);
    if (i % world.size() == world.rank()) scores[i] = kScores[i / 4][i % 4];
  }
  EXPECT_EQ(clip.Clip(groups.world, stream), 400);
  mine.model.parallel->ShareWeights();
  mine.model.parallel->WaitForWeights();
  MEGATRON_RETURN_IF_ERROR(world.status());

  for (size_t p = 0; p < mine.model.parameters.size(); ++p) {
    const Parameter& parameter = *mine.model.parameters[p];
    const Buffer copy({}, parameter.data.numel() * 4, "copy", nullptr);
    const Tensor now = copy.At(0, DType::kFloat32, parameter.data.shape());
    ops::Copy(stream, parameter.data, now);
    const std::vector<float> after = Floats(now);
    const int64_t row = parameter.attention_layer.has_value()
                            ? parameter.data.numel() / (local[0] * local[1])
                            : parameter.data.numel();
    for (size_t i = 0; i < after.size(); ++i) {
      double factor = 1;
      if (parameter.attention_layer.has_value()) {
        const int64_t r = static_cast<int64_t>(i) / row;
        factor = WantedFactor(*parameter.attention_layer, offset[0] + r / local[1],
                              offset[1] + r % local[1]);
      }
      // The master is scaled once, and rounded once to the weight.
      const float want = before[p][i] * static_cast<float>(factor);
      EXPECT_EQ(after[i], layout.dtype == DType::kFloat32 ? want : ToFloat(ToBFloat16(want)))
          << parameter.name << " element " << i;
    }
  }
  return absl::OkStatus();
}

TEST(QkClipTest, ScalesQueriesAndKeysOfGroupsAboveTheThreshold) {
  for (const Layout& layout :
       {Layout{1}, Layout{1, 1, DataSharding::kNone, DType::kBFloat16}, Layout{2, 2}, Layout{4, 4},
        Layout{3, 1, DataSharding::kStates}, Layout{2, 1, DataSharding::kStates, DType::kBFloat16},
        Layout{4, 2, DataSharding::kGradients, DType::kBFloat16}}) {
    SCOPED_TRACE(::testing::Message()
                 << layout.ranks << " ranks, " << layout.tensor << " tensor-parallel, sharding "
                 << static_cast<int>(layout.sharding) << ", " << Name(layout.dtype));
    EXPECT_THAT(RunRanks(layout.ranks,
                         [&](int, const ProcessGroup& world) { return ClipOn(layout, world); }),
                IsOk());
  }
}

TEST(QkClipTest, LeavesEverythingAtTheThreshold) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  Model mine(DType::kFloat32, {0, 0, 0}, {kGroups, kPerGroup, kChannels}, ProcessGroups(),
             DataSharding::kNone);
  mine.model.buffers->InitializeWeights(9, stream);
  const std::vector<float> before = Floats(mine.model.buffers->weights());
  QkClip clip(kOptions, 2, kGroups * kHeads, mine.model.buffers.get(), nullptr);
  clip.StartStep(stream);
  clip.largest_scores_LN().data<float>()[5] = 100;
  EXPECT_EQ(clip.Clip(ProcessGroup(), stream), 100);
  EXPECT_EQ(Floats(mine.model.buffers->weights()), before);
}

}  // namespace
}  // namespace megatron
