#include "megatron/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/main_replica.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// The numbers that all ranks add up before they decide about a step.
enum Statistic { kSumOfSquares, kNonFinite, kStopRequested, kLogRequested, kNumStatistics };
constexpr int64_t kCountOffset = 16;  // offset in bytes: an int64 follows the floats
constexpr int64_t kStatisticsBytes = 24;

// Calls body(bucket, range) on ranges that cover all elements of which this rank is the main
// replica. A range may include padding between parameters, which is zero in gradients and masters.
// The ranges, and so the order of sums, are the same whatever is sharded.
template <typename Body>
void ForEachMainReplicaRange(const ParameterBuffers& buffers, const ProcessGroups& groups,
                             Body body) {
  const Bucket* first = nullptr;  // the bucket in which `range` begins; null: no range is open
  FlatRange range;
  const auto finish = [&] {
    if (first != nullptr) body(*first, range);
    first = nullptr;
  };
  const Bucket* previous = nullptr;
  for (const FlatParameter& flat : buffers.parameters()) {
    const FlatRange replica = MainReplicaRange(buffers, flat, groups);
    const Bucket& bucket = buffers.bucket_of(flat);
    const bool follows =
        previous == &bucket || first == nullptr || bucket.shard.begin == previous->shard.end;
    if (replica.size() == 0 || !follows) finish();
    previous = &bucket;
    if (replica.size() == 0) continue;
    if (first == nullptr) {
      first = &bucket;
      range.begin = replica.begin;
    }
    range.end = replica.end;
  }
  finish();
}

}  // namespace

Optimizer::Optimizer(std::unique_ptr<const UpdateRule> rule, ParameterBuffers* buffers,
                     MemoryLedger* ledger)
    : rule_(std::move(rule)),
      buffers_(buffers),
      statistics_(buffers->options().device, kStatisticsBytes, "optimizer statistics", ledger),
      sums_(statistics_.At(0, DType::kFloat32, {kNumStatistics}), "optimizer statistics"),
      count_(statistics_.At(kCountOffset, DType::kInt64, {1}), "optimizer statistics") {
  CHECK_EQ(buffers->num_states(), rule_->states().size());
  CHECK(buffers->options().unit == rule_->unit());
  if (rule_->unit() == ShardUnit::kParameter) {
    PlanWholeParameters();
  } else {
    PlanRanges();
  }
}

void Optimizer::PlanWholeParameters() {
  for (const FlatParameter& flat : buffers_->parameters()) {
    const Bucket& bucket = buffers_->bucket_of(flat);
    const FlatRange here = Common(flat.range, buffers_->optimizer_range(bucket));
    if (here.size() == 0) continue;
    CHECK_EQ(here.size(), flat.range.size()) << flat.parameter->name;
    optimizer_ranges_.push_back({&bucket, here, {{0, here.size()}}, {&flat}});
  }
}

void Optimizer::PlanRanges() {
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange here = buffers_->optimizer_range(bucket);
    if (here.size() == 0) continue;
    if (optimizer_ranges_.empty() || optimizer_ranges_.back().range.end != here.begin)
      optimizer_ranges_.push_back({&bucket, {here.begin, here.begin}, {}, {}});
    OptimizerRange& whole = optimizer_ranges_.back();
    whole.range.end = here.end;
    for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
      const FlatParameter& flat = buffers_->parameters()[i];
      const FlatRange common = Common(flat.range, here);
      if (common.size() == 0) continue;
      whole.segments.push_back({common.begin - whole.range.begin, common.end - whole.range.begin});
      whole.parameters.push_back(&flat);
    }
  }
}

absl::StatusOr<StepResult> Optimizer::Step(const StepOptions& options, const ProcessGroups& groups,
                                           const Stream& stream) {
  const double unscale = 1 / options.loss_scale;
  const Tensor statistics = statistics_.At(0, DType::kFloat32, {kNumStatistics});
  float* const values = sums_.host().data<float>();
  if (values != nullptr) {
    values[kSumOfSquares] = values[kNonFinite] = 0;
    values[kStopRequested] = options.stop_requested ? 1 : 0;
    values[kLogRequested] = options.log_requested ? 1 : 0;
  }
  {
    const TraceSpan span(stream, TimeCategory::kOptimizer, "gradient norm");
    sums_.StartSend(stream);
    ForEachMainReplicaRange(*buffers_, groups, [&](const Bucket& bucket, const FlatRange& range) {
      ops::SumOfSquares(stream, static_cast<float>(unscale), buffers_->Gradients(bucket, range),
                        statistics.Slice(0, kSumOfSquares, kNonFinite + 1));
    });
    groups.world.AllReduce(statistics, ReduceOp::kSum, stream);
    sums_.Fetch(stream);
  }
  if (absl::Status status = groups.world.status(); !status.ok()) return status;

  StepResult result;
  if (values != nullptr) {
    result.grad_norm = std::sqrt(static_cast<double>(values[kSumOfSquares]));
    result.finite = values[kNonFinite] == 0 && std::isfinite(result.grad_norm);
    result.stop_requested = values[kStopRequested] != 0;
    result.log_requested = values[kLogRequested] != 0;
  }
  result.applied = result.finite;
  if (!result.applied) return result;
  double clip = 1;
  if (options.clip_grad > 0) clip = std::min(1.0, options.clip_grad / (result.grad_norm + 1e-6));
  ++applied_steps_;
  Update(options, unscale * clip, stream);
  return result;
}

void Optimizer::UpdateElements(const Bucket& bucket, const FlatRange& range,
                               absl::Span<const ops::OptimizerSegment> segments,
                               const Parameter* parameter, double grad_scale,
                               const Stream& stream) {
  UpdateRange update;
  update.segments = segments;
  update.gradients = buffers_->Gradients(bucket, range);
  update.masters = buffers_->Masters(bucket, range);
  for (size_t i = 0; i < buffers_->num_states(); ++i)
    update.states.push_back(buffers_->State(i, bucket, range));
  if (buffers_->has_masters()) update.weights = buffers_->Weights(bucket, range);
  update.grad_scale = static_cast<float>(grad_scale);
  update.step = applied_steps_;
  update.parameter = parameter;
  rule_->Update(update, stream);
}

// The result for an element does not depend on how elements are cut into ranges.
void Optimizer::UpdateObserved(const OptimizerRange& whole, UpdateObserver* observer,
                               double grad_scale, const Stream& stream) {
  const bool whole_parameters = rule_->unit() == ShardUnit::kParameter;
  for (size_t i = 0; i < whole.segments.size(); ++i) {
    const FlatParameter& flat = *whole.parameters[i];
    ops::OptimizerSegment segment = whole.segments[i];
    FlatRange piece = {whole.range.begin + segment.begin, 0};
    const int64_t end = whole.range.begin + segment.end;
    const int64_t most = whole_parameters ? flat.range.size() : UpdateObserver::kMostElements;
    for (; piece.begin < end; piece.begin = piece.end) {
      piece.end = std::min(end, piece.begin + most);
      segment.begin = 0;
      segment.end = piece.size();
      observer->BeforeUpdate(flat, piece, stream);
      UpdateElements(buffers_->bucket_of(flat), piece, {&segment, 1},
                     whole_parameters ? flat.parameter : nullptr, grad_scale, stream);
      observer->AfterUpdate(flat, piece, stream);
    }
  }
}

void Optimizer::Update(const StepOptions& options, double grad_scale, const Stream& stream) {
  const TraceSpan span(stream, TimeCategory::kOptimizer, "update");
  for (OptimizerRange& whole : optimizer_ranges_) {
    for (size_t i = 0; i < whole.segments.size(); ++i) {
      whole.segments[i].lr = static_cast<float>(options.lr);
      whole.segments[i].weight_decay = whole.parameters[i]->parameter->weight_decay
                                           ? static_cast<float>(options.weight_decay)
                                           : 0;
    }
    if (options.observer != nullptr) {
      UpdateObserved(whole, options.observer, grad_scale, stream);
    } else {
      UpdateElements(
          *whole.bucket, whole.range, whole.segments,
          rule_->unit() == ShardUnit::kParameter ? whole.parameters.front()->parameter : nullptr,
          grad_scale, stream);
    }
  }
}

int64_t Optimizer::CountZeroGradients(const ProcessGroups& groups, const Stream& stream) const {
  const Tensor count = statistics_.At(kCountOffset, DType::kInt64, {1});
  ops::Zero(stream, count);
  for (const FlatParameter& flat : buffers_->parameters()) {
    const FlatRange replica = MainReplicaRange(*buffers_, flat, groups);
    if (replica.size() > 0)
      ops::CountZeros(stream, buffers_->Gradients(buffers_->bucket_of(flat), replica), count);
  }
  groups.world.AllReduce(count, ReduceOp::kSum, stream);
  count_.Fetch(stream);
  return stream.is_meta() ? 0 : *count_.host().data<int64_t>();
}

double Optimizer::ParametersNorm(const ProcessGroups& groups, const Stream& stream) const {
  const Tensor statistics = statistics_.At(0, DType::kFloat32, {kNumStatistics});
  ops::Zero(stream, statistics);
  ForEachMainReplicaRange(*buffers_, groups, [&](const Bucket& bucket, const FlatRange& range) {
    ops::SumOfSquares(stream, 1, buffers_->Masters(bucket, range),
                      statistics.Slice(0, kSumOfSquares, kNonFinite + 1));
  });
  groups.world.AllReduce(statistics, ReduceOp::kSum, stream);
  sums_.Fetch(stream);
  if (stream.is_meta()) return 0;
  return std::sqrt(static_cast<double>(sums_.host().data<float>()[kSumOfSquares]));
}

}  // namespace megatron
