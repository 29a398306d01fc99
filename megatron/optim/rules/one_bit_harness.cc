#include "megatron/optim/rules/one_bit_harness.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

constexpr int kTensors = OneBitRun::kTensors;

// A rank's summand of the gradient.
std::vector<float> SummandOf(int tensor, int rank, int step) {
  const int64_t size = OneBitRun::kSizes[tensor];
  const ops::HostTensor x =
      ops::HostTensor::Normal({size}, DType::kFloat32, 1000 * tensor + 100 * step + rank);
  std::vector<float> values(x.tensor().data<float>(), x.tensor().data<float>() + size);
  if (tensor == 0) values[OneBitRun::kNeverUsed] = 0;
  return values;
}

absl::StatusOr<ProcessGroups> GroupsOf(const ProcessGroup& world) {
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create({}, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert({}, world.size()));
  return MakeGroups(dense, expert, world.communicator());
}

absl::StatusOr<OneBitOutcome> Train(const ProcessGroup& world, const OneBitRun& run) {
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(world));
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  TestModel model(run.optimizer);
  model.buffer_options.data = {world.size(), world.rank()};
  Parameter* const parameters[kTensors] = {model.Add("matrix", Replicated({8, 25})),
                                           model.Add("bias", Replicated({60}), /*decays=*/false)};
  model.Build();
  model.buffers->InitializeWeights(9, stream);
  DataParallelOptions data_parallel;
  data_parallel.compression.type = CompressionType::kOneBit;
  data_parallel.compression.joins_tensors = run.optimizer.kind == OptimizerOptions::kOneBitLamb;
  model.Connect(groups, stream, data_parallel);
  OneBitOutcome outcome;
  for (int step = 0; step < run.steps; ++step) {
    const Optimizer& optimizer = *model.optimizer;
    const bool own = optimizer.rule().StepAfter(optimizer.applied_steps()) != RankStep::kSum;
    model.parallel->StartStep(1, step, own);
    for (int t = 0; t < kTensors; ++t) {
      const std::vector<float> gradient = SummandOf(t, world.rank(), step);
      std::copy(gradient.begin(), gradient.end(), parameters[t]->grad.data<float>());
    }
    if (step == run.broken_step && world.rank() == 1)
      parameters[1]->grad.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    for (const GradientCompressor::Named& state : model.parallel->compressor()->states()) {
      if (state.name == run.lost_error) ops::Zero(stream, state.tensor);
    }
    StepOptions step_options;
    step_options.lr = run.LrOf(step);
    step_options.weight_decay = OneBitRun::kDecay;
    step_options.clip_grad = run.clip_grad;
    step_options.average = model.parallel.get();
    MEGATRON_ASSIGN_OR_RETURN(const StepResult result, model.Step(step_options, groups, stream));
    outcome.norms.push_back(result.grad_norm);
    outcome.applied.push_back(result.applied);
  }
  for (Parameter* const parameter : parameters) {
    outcome.weights.push_back(Floats(parameter->data));
    for (size_t i = 0; i < model.buffers->parameters().size(); ++i) {
      const FlatParameter& flat = model.buffers->parameters()[i];
      if (flat.parameter != parameter) continue;
      outcome.masters.push_back(
          Floats(model.buffers->Masters(model.buffers->bucket_of(flat), flat.range)));
      const absl::Span<float> numbers = model.optimizer->NumbersOf(i);
      outcome.numbers.emplace_back(numbers.begin(), numbers.end());
    }
  }
  return outcome;
}

}  // namespace

std::vector<OneBitOutcome> TrainOneBit(int ranks, const OneBitRun& run) {
  std::vector<OneBitOutcome> outcomes(ranks);
  const absl::Status status =
      RunRanks(ranks, [&](int rank, const ProcessGroup& world) -> absl::Status {
        MEGATRON_ASSIGN_OR_RETURN(outcomes[rank], Train(world, run));
        return world.status();
      });
  CHECK(status.ok()) << status;
  return outcomes;
}

OneBitTensors FirstOneBitWeights(const OneBitRun& run) {
  OneBitRun none = run;
  none.steps = 0;
  return TrainOneBit(1, none)[0].weights;
}

OneBitGradients OneBitGradientsOf(int ranks, int step) {
  OneBitGradients gradients;
  double own = 0, whole = 0;
  for (int t = 0; t < kTensors; ++t) {
    OneBitTensors of_ranks;
    std::vector<float> sum(OneBitRun::kSizes[t], 0);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<float> x = SummandOf(t, rank, step);
      for (size_t i = 0; i < x.size(); ++i) {
        sum[i] += x[i];
        x[i] *= static_cast<float>(ranks);
        own += static_cast<double>(x[i]) * x[i] / ranks;
      }
      of_ranks.push_back(x);
    }
    for (const float x : sum) whole += static_cast<double>(x) * x;
    gradients.own.push_back(of_ranks);
    gradients.whole.push_back(sum);
  }
  gradients.own_norm = std::sqrt(own);
  gradients.whole_norm = std::sqrt(whole);
  return gradients;
}

double WorstOffset(const OneBitTensors& got, const OneBitTensors& want) {
  CHECK_EQ(got.size(), want.size());
  double worst = 0;
  for (size_t t = 0; t < want.size(); ++t) {
    CHECK_EQ(got[t].size(), want[t].size());
    for (size_t i = 0; i < want[t].size(); ++i) {
      const double offset = std::abs(double{got[t][i]} - want[t][i]) / (1 + std::abs(want[t][i]));
      worst =
          std::isfinite(offset) ? std::max(worst, offset) : std::numeric_limits<double>::infinity();
    }
  }
  return worst;
}

}  // namespace megatron
