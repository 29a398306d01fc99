#include "megatron/optim/data_parallel.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/comm_stream.h"
#include "megatron/optim/comm_worker.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// The same ranks with calls of their own, for another thread.
absl::StatusOr<ProcessGroup> Clone(const ProcessGroup& group) {
  if (group.size() == 1) return group;
  std::vector<int> ranks(group.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> communicator,
                            group.communicator()->Split({ranks}, group.name() + "-overlap"));
  return ProcessGroup(std::move(communicator));
}

FlatRange Within(const FlatRange& range, const Bucket& bucket) {
  return {range.begin - bucket.range.begin, range.end - bucket.range.begin};
}

Tensor Cut(const Tensor& flat, const FlatRange& range) {
  return flat.Slice(0, range.begin, range.end);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallel>> DataParallel::Create(
    const DataParallelOptions& options, const ProcessGroups& groups, const WholeBlockSizes& sizes,
    ParameterBuffers* buffers, const Stream& stream, MemoryLedger* ledger) {
  ProcessGroups worker_groups = groups;
  if ((options.overlap_grad_reduce || options.overlap_param_gather) && !stream.is_meta()) {
    MEGATRON_ASSIGN_OR_RETURN(worker_groups.data_context, Clone(groups.data_context));
    MEGATRON_ASSIGN_OR_RETURN(worker_groups.expert_data, Clone(groups.expert_data));
  }
  return std::unique_ptr<DataParallel>(
      new DataParallel(options, groups, worker_groups, sizes, buffers, stream, ledger));
}

DataParallel::DataParallel(const DataParallelOptions& options, const ProcessGroups& groups,
                           const ProcessGroups& worker_groups, const WholeBlockSizes& sizes,
                           ParameterBuffers* buffers, const Stream& stream, MemoryLedger* ledger)
    : options_(options),
      groups_(groups),
      worker_groups_(worker_groups),
      buffers_(buffers),
      stream_(stream),
      weights_pool_(stream.device(), sizes.weights, "weights/gathered", ledger),
      gradients_pool_(stream.device(), sizes.gradients, "gradients/whole", ledger) {
  for (const int unit : buffers->layout().unit_of_block) {
    if (unit >= static_cast<int>(units_.size())) units_.resize(unit + 1);
    ++units_[unit].blocks;
  }
  for (const Bucket& bucket : buffers->buckets()) {
    const ProcessGroup& group = GroupOf(groups, bucket);
    CHECK_EQ(bucket.part.size() * group.size(), bucket.range.size()) << group.name();
    units_[bucket.unit].buckets.push_back(&bucket);
    units_[bucket.unit].elements += bucket.range.size();
  }
  if (stream.is_meta() || !(options.overlap_grad_reduce || options.overlap_param_gather)) return;
  const auto run = [this](const CommLane::Job& job, const Stream& stream) {
    Run(static_cast<JobKind>(job.kind), job.unit, worker_groups_, stream);
  };
  if (stream.device().type == DeviceType::kCuda) {
    lane_ = std::make_unique<CommStream>(stream, run);
  } else {
    const Stream beside = Trace::FollowBeside(stream, Stream::Inline(), "communication");
    lane_ =
        std::make_unique<CommWorker>([run, beside](const CommLane::Job& job) { run(job, beside); });
  }
}

DataParallel::~DataParallel() = default;

int64_t DataParallel::Submit(JobKind kind, int unit, bool overlap) {
  if (overlap && lane_ != nullptr) return lane_->Add({kind, unit});
  Run(kind, unit, groups_, stream_);
  return 0;
}

void DataParallel::Run(JobKind kind, int unit, const ProcessGroups& groups, const Stream& stream) {
  if (kind == kReduce) {
    Reduce(units_[unit], groups, stream);
  } else {
    Gather(units_[unit], groups, stream);
  }
}

void DataParallel::Reduce(const Unit& unit, const ProcessGroups& groups,
                          const Stream& stream) const {
  int64_t at = 0;
  for (const Bucket* bucket : unit.buckets) {
    const FlatRange here = {at, at + bucket->range.size()};
    const Tensor whole = keeps_gradient_parts() ? Cut(unit.gradients.tensor, here)
                                                : buffers_->Gradients(*bucket, bucket->range);
    const Tensor rounded = unit.rounded.tensor.empty() ? Tensor() : Cut(unit.rounded.tensor, here);
    ReduceBucket(*bucket, whole, rounded, GroupOf(groups, *bucket), stream);
    at = here.end;
  }
}

void DataParallel::ReduceBucket(const Bucket& bucket, const Tensor& whole, const Tensor& rounded,
                                const ProcessGroup& group, const Stream& stream) const {
  const bool to_part = buffers_->shards(DataSharding::kStates);
  const FlatRange part = Within(bucket.part, bucket);
  const FlatRange wanted = to_part ? part : FlatRange{0, bucket.range.size()};
  if (group.size() > 1) {
    const Tensor& sent = rounded.empty() ? whole : rounded;
    if (!rounded.empty()) ops::Copy(stream, whole, rounded);
    if (to_part) {
      group.ReduceScatter(sent, Cut(sent, part), stream);
    } else {
      group.AllReduce(sent, ReduceOp::kSum, stream);
    }
    if (!rounded.empty()) ops::Copy(stream, Cut(rounded, wanted), Cut(whole, wanted));
  }
  if (keeps_gradient_parts())
    ops::Add(stream, Cut(whole, part), buffers_->Gradients(bucket, bucket.part));
}

void DataParallel::Gather(const Unit& unit, const ProcessGroups& groups,
                          const Stream& stream) const {
  int64_t at = 0;
  for (const Bucket* bucket : unit.buckets) {
    const FlatRange here = {at, at + bucket->range.size()};
    const Tensor whole = gathers_weights() ? Cut(unit.weights.tensor, here)
                                           : buffers_->Weights(*bucket, bucket->range);
    GroupOf(groups, *bucket).AllGather(buffers_->Weights(*bucket, bucket->part), whole, stream);
    at = here.end;
  }
}

void DataParallel::StartStep(int64_t micro_batches) {
  micro_batches_ = micro_batches;
  buffers_->ZeroGradients(stream_);
}

void DataParallel::BindWeights(const Unit& unit, const Tensor& whole) const {
  int64_t origin = 0;
  for (const Bucket* bucket : unit.buckets) {
    for (int i = bucket->first_place; i < bucket->last_place; ++i) {
      const ParameterPlace& place = buffers_->places()[i];
      const FlatRange range = Within(place.range(), *bucket);
      place.parameter->data = whole.empty() ? Tensor()
                                            : Cut(whole, {origin + range.begin, origin + range.end})
                                                  .View(place.parameter->sharding.local_shape);
    }
    origin += bucket->range.size();
  }
}

void DataParallel::BindGradients(const Unit& unit, const Tensor& whole) const {
  int64_t origin = 0;
  for (const Bucket* bucket : unit.buckets) {
    for (int i = bucket->first_place; i < bucket->last_place; ++i) {
      const ParameterPlace& place = buffers_->places()[i];
      const FlatRange range = Within(place.range(), *bucket);
      place.parameter->grad = whole.empty() ? Tensor()
                                            : Cut(whole, {origin + range.begin, origin + range.end})
                                                  .View(place.parameter->sharding.local_shape);
    }
    origin += bucket->range.size();
  }
}

void DataParallel::StartGather(int unit) {
  Unit& mine = units_[unit];
  if (mine.gathered) return;
  mine.weights = weights_pool_.Allocate(buffers_->options().model_dtype, mine.elements);
  mine.gather_job = Submit(kGather, unit, options_.overlap_param_gather);
  mine.gathered = true;
}

void DataParallel::Acquire(int block, int next) {
  Unit& mine = units_[buffers_->UnitOf(block)];
  if (gathers_weights()) {
    StartGather(buffers_->UnitOf(block));
    if (next != kNone && options_.overlap_param_gather) StartGather(buffers_->UnitOf(next));
  }
  if (lane_ != nullptr) lane_->Wait(mine.gather_job);
  if (gathers_weights() && mine.users++ == 0) BindWeights(mine, mine.weights.tensor);
}

void DataParallel::Release(int block) {
  if (!gathers_weights()) return;
  Unit& mine = units_[buffers_->UnitOf(block)];
  CHECK_GT(mine.users, 0) << block;
  if (--mine.users > 0) return;
  BindWeights(mine, Tensor());
  weights_pool_.Free(&mine.weights);
  mine.gathered = false;
}

void DataParallel::BeginGradients(int block) {
  if (!keeps_gradient_parts()) return;
  const int unit = buffers_->UnitOf(block);
  Unit& mine = units_[unit];
  if (!mine.gradients.tensor.empty()) {
    // Begun and not ended, or still under way from the micro-batch before.
    const auto reducing =
        std::any_of(reductions_.begin(), reductions_.end(),
                    [&](const InFlight& reduction) { return reduction.unit == unit; });
    if (!reducing) return;
    LimitReductions(0);
  }
  mine.gradients = gradients_pool_.Allocate(DType::kFloat32, mine.elements);
  ops::Zero(stream_, mine.gradients.tensor);
  BindGradients(mine, mine.gradients.tensor);
}

void DataParallel::EndGradients(int block) {
  const int unit = buffers_->UnitOf(block);
  Unit& mine = units_[unit];
  ++mine.ends;
  CHECK_LE(mine.ends, micro_batches_ * mine.blocks) << "block " << block;
  if (keeps_gradient_parts()) {
    BindGradients(mine, Tensor());
    StartReduce(unit);
  } else if (options_.overlap_grad_reduce && mine.ends == micro_batches_ * mine.blocks) {
    StartReduce(unit);
  }
}

void DataParallel::StartReduce(int unit) {
  Unit& mine = units_[unit];
  const bool rounds =
      options_.grad_reduce_in_bf16 &&
      std::any_of(mine.buckets.begin(), mine.buckets.end(),
                  [&](const Bucket* bucket) { return GroupOf(groups_, *bucket).size() > 1; });
  // At most one unit's memory besides that of the unit whose backward runs.
  if (keeps_gradient_parts() || rounds) LimitReductions(0);
  if (rounds) mine.rounded = gradients_pool_.Allocate(DType::kBFloat16, mine.elements);
  reductions_.push_back({unit, Submit(kReduce, unit, options_.overlap_grad_reduce)});
  mine.reduced = true;
  if (!options_.overlap_grad_reduce) LimitReductions(0);
}

void DataParallel::LimitReductions(size_t most) {
  for (; reductions_.size() > most; reductions_.erase(reductions_.begin())) {
    Unit& unit = units_[reductions_.front().unit];
    if (lane_ != nullptr) lane_->Wait(reductions_.front().job);
    gradients_pool_.Free(&unit.gradients);
    gradients_pool_.Free(&unit.rounded);
  }
}

// The sums that are one parameter's own: over the axes that its layer left open, and over the
// stages that share it.
void DataParallel::SumPartialGradient(const ParameterPlace& place) const {
  const Parameter& parameter = *place.parameter;
  const Sharding& sharding = parameter.sharding;
  const Bucket& bucket = buffers_->bucket_of(place);
  const FlatRange range =
      buffers_->shards(DataSharding::kStates) ? Common(place.range(), bucket.part) : place.range();
  if (range.size() == 0) return;  // for all these ranks
  const Tensor gradient = buffers_->Gradients(bucket, range);
  if (sharding.partial.contains(Axis::kTensor)) {
    const ProcessGroup& tensor = sharding.expert_grid           ? groups_.expert_tensor
                                 : sharding.tensor_replicas > 1 ? groups_.tensor_replicas
                                                                : groups_.tensor;
    tensor.AllReduce(gradient, ReduceOp::kSum, stream_);
  }
  if (sharding.partial.contains(Axis::kExpert))
    groups_.expert.AllReduce(gradient, ReduceOp::kSum, stream_);
  if (parameter.tied) groups_.tied_embedding.AllReduce(gradient, ReduceOp::kSum, stream_);
}

void DataParallel::FinalizeGradients() {
  for (size_t i = units_.size(); i-- > 0;) {
    Unit& unit = units_[i];
    if (unit.buckets.empty()) continue;
    if (keeps_gradient_parts()) {
      CHECK(unit.ends == micro_batches_) << "unit " << i << " ended " << unit.ends << " times";
    } else if (!unit.reduced) {
      StartReduce(static_cast<int>(i));
    }
  }
  LimitReductions(0);
  for (Unit& unit : units_) {
    unit.reduced = false;
    unit.ends = 0;
    if (lane_ != nullptr) lane_->Wait(unit.gather_job);
  }
  for (const ParameterPlace& place : buffers_->places()) SumPartialGradient(place);
}

void DataParallel::ShareWeights() {
  const bool parts = buffers_->shards(DataSharding::kStates);
  for (const ParameterPlace& place : buffers_->places()) {
    if (!place.parameter->tied) continue;
    const Bucket& bucket = buffers_->bucket_of(place);
    const FlatRange range = parts ? Common(place.range(), bucket.part) : place.range();
    if (range.size() > 0)
      groups_.tied_embedding.Broadcast(buffers_->Weights(bucket, range), /*root=*/0, stream_);
  }
  if (!parts || gathers_weights()) {
    CHECK(weights_pool_.empty());
    return;
  }
  for (size_t i = 0; i < units_.size(); ++i) {
    units_[i].gather_job = Submit(kGather, static_cast<int>(i), options_.overlap_param_gather);
  }
}

WholeBlockSizes DataParallel::HighWater() const {
  return {weights_pool_.high_water(), gradients_pool_.high_water()};
}

}  // namespace megatron
