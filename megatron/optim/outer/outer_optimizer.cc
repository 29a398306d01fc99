#include "megatron/optim/outer/outer_optimizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/overlap/comm_worker.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/outer/outer_step.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

constexpr int64_t kMostPieceElements = int64_t{1} << 20;
constexpr char kOuterStep[] = "outer step";

// Returns the tensor-parallel ranks that hold the same elements of a parameter; null: there are no
// others.
const ProcessGroup* TensorReplicasOf(const Sharding& sharding, const ProcessGroups& groups) {
  const ProcessGroup* group = sharding.expert_grid ? &groups.expert_tensor : &groups.tensor;
  if (sharding.sharded.contains(Axis::kTensor)) {
    if (sharding.tensor_replicas == 1) return nullptr;
    group = &groups.TensorReplicas(sharding.tensor_replicas);
  }
  return group->size() == 1 ? nullptr : group;
}

}  // namespace

int FragmentOf(const std::string& parameter, int num_fragments) {
  constexpr absl::string_view kLayers = ".layers.";
  const size_t found = parameter.find(kLayers.data());
  if (found != std::string::npos) {
    const size_t begin = found + kLayers.size();
    int layer = 0;
    CHECK(absl::SimpleAtoi(parameter.substr(begin, parameter.find('.', begin) - begin), &layer))
        << parameter;
    return layer % num_fragments;
  }
  return absl::StartsWith(parameter, "embedding.") ? 0 : num_fragments - 1;
}

OuterOptimizer::OuterOptimizer(const OuterOptimizerOptions& options, const ProcessGroups& groups,
                               ParameterBuffers* buffers, MemoryLedger* ledger)
    : options_(options), groups_(groups), buffers_(buffers) {
  CHECK(options.enabled());
  CHECK(!buffers->has_host_part());
  CHECK_EQ(options.sync_every % options.num_fragments, 0);
  if (options.elsewhere) {
    CHECK_EQ(islands(), 1);
    CHECK_EQ(options.num_fragments, 1);
    CHECK_EQ(options.sync_delay, 0);
  }
  CHECK_LT(options.sync_delay, options.sync_every / options.num_fragments);
  for (const Bucket& bucket : buffers->buckets()) {
    positions_.push_back(elements_);
    const int64_t size = buffers->optimizer_range(bucket).size();
    elements_ += size;
    piece_elements_ = std::max(piece_elements_, std::min(size, kMostPieceElements));
  }
  const int64_t bytes = elements_ * SizeOf(DType::kFloat32);
  global_ = Buffer(buffers->options().device, bytes, "global weights", ledger);
  if (has_momentum())
    momentum_ = Buffer(buffers->options().device, bytes, "outer momentum", ledger);
  PlanPieces();
  const Device& device = buffers->options().device;
  const Device host = device.type == DeviceType::kMeta ? device : Device();
  if (options.update_alpha != 0)
    local_ = Buffer(device, piece_elements_ * SizeOf(DType::kFloat32), "outer step", ledger);
  if (options.sync_delay > 0) {
    int64_t most = 0;
    for (const std::vector<Piece>& pieces : fragments_) {
      if (!pieces.empty()) most = std::max(most, pieces.back().at + pieces.back().range.size());
    }
    sums_ = Buffer(host, most * SizeOf(DType::kFloat32), "host/outer gradients", ledger);
  }
  if (!sends_codes()) return;
  codes_ = Buffer(host, (1 + islands()) * OuterCodeBytes(options.gradient_type, piece_elements_),
                  "host/outer codes", ledger);
  values_ = Buffer(host, 2 * piece_elements_ * SizeOf(DType::kFloat32), "host/outer codes", ledger);
}

// A parameter has the padding behind it, so that one fragment has whole buckets.
void OuterOptimizer::PlanPieces() {
  fragments_.resize(options_.num_fragments);
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange mine = buffers_->optimizer_range(bucket);
    for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
      const FlatParameter& flat = buffers_->parameters()[i];
      const bool first = i == bucket.first_parameter, last = i + 1 == bucket.last_parameter;
      const FlatRange range =
          Common(mine, {first ? bucket.range.begin : flat.range.begin,
                        last ? bucket.range.end : buffers_->parameters()[i + 1].range.begin});
      if (range.size() == 0) continue;
      std::vector<Piece>& pieces =
          fragments_[FragmentOf(flat.parameter->name, options_.num_fragments)];
      if (!pieces.empty() && pieces.back().bucket == &bucket &&
          pieces.back().range.end == range.begin) {
        pieces.back().range.end = range.end;
        continue;
      }
      const int64_t at = pieces.empty() ? 0 : pieces.back().at + pieces.back().range.size();
      pieces.push_back({&bucket, range, at});
    }
  }
}

absl::Status OuterOptimizer::PrepareLane(const Stream& compute) {
  if (options_.sync_delay == 0 || islands() == 1 || compute.is_meta()) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(lane_islands_, CloneForLane(groups_.data_context_replicas));
  const bool has_experts =
      std::any_of(buffers_->buckets().begin(), buffers_->buckets().end(),
                  [](const Bucket& bucket) { return bucket.section == Section::kExperts; });
  if (has_experts) {
    MEGATRON_ASSIGN_OR_RETURN(lane_expert_islands_, CloneForLane(groups_.expert_data_replicas));
  }
  // What is sent is in the host's memory, wherever the weights are.
  lane_ = std::make_unique<CommWorker>(compute, "communication islands");
  return absl::OkStatus();
}

const ProcessGroup& OuterOptimizer::IslandsOf(const Bucket& bucket) const {
  return bucket.section == Section::kExperts ? groups_.expert_data_replicas
                                             : groups_.data_context_replicas;
}

Tensor OuterOptimizer::Part(const Buffer& buffer, const Bucket& bucket,
                            const FlatRange& range) const {
  const FlatRange mine = buffers_->optimizer_range(bucket);
  CHECK(mine.begin <= range.begin && range.end <= mine.end);
  const int64_t at = positions_[&bucket - buffers_->buckets().data()] + range.begin - mine.begin;
  return buffer.At(at * SizeOf(DType::kFloat32), DType::kFloat32, {range.size()});
}

Tensor OuterOptimizer::Global(const Bucket& bucket, const FlatRange& range) const {
  return Part(global_, bucket, range);
}

Tensor OuterOptimizer::Momentum(const Bucket& bucket, const FlatRange& range) const {
  return Part(momentum_, bucket, range);
}

std::vector<Tensor> OuterOptimizer::tensors() const {
  std::vector<Tensor> tensors = {global_.At(0, DType::kFloat32, {elements_})};
  if (has_momentum()) tensors.push_back(momentum_.At(0, DType::kFloat32, {elements_}));
  return tensors;
}

void OuterOptimizer::Start(const Stream& stream) {
  in_flight_ = {};
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange range = buffers_->optimizer_range(bucket);
    if (range.size() == 0) continue;
    ops::Copy(stream, buffers_->Masters(bucket, range), Global(bucket, range));
    if (has_momentum()) ops::Zero(stream, Momentum(bucket, range));
  }
}

Tensor OuterOptimizer::Sums(const Piece& piece) const {
  return sums_.At(piece.at * SizeOf(DType::kFloat32), DType::kFloat32, {piece.range.size()});
}

Tensor OuterOptimizer::Sums(const Bucket& bucket, const FlatRange& range) const {
  for (const Piece& piece : fragments_[in_flight_.fragment]) {
    if (piece.bucket != &bucket || piece.range.end <= range.begin) continue;
    CHECK(piece.range.begin <= range.begin && range.end <= piece.range.end);
    return Sums(piece).Slice(0, range.begin - piece.range.begin, range.end - piece.range.begin);
  }
  LOG(FATAL) << "elements of another fragment";
}

// Outer steps are rare, so that passes over memory do not matter: the operations that are there do
// it.
void OuterOptimizer::FormGradient(const Piece& piece, const Stream& stream) const {
  const Tensor gradient = buffers_->Gradients(*piece.bucket, piece.range);
  ops::Copy(stream, buffers_->Masters(*piece.bucket, piece.range), gradient);
  ops::Scale(stream, -1, gradient);
  ops::Add(stream, Global(*piece.bucket, piece.range), gradient);
}

void OuterOptimizer::Sum(const ProcessGroup& islands, const Tensor& gradient,
                         const Stream& stream) const {
  if (sends_codes()) {
    SumCodes(islands, gradient, stream);
  } else {
    islands.AllReduce(gradient, ReduceOp::kSum, stream);
  }
}

void OuterOptimizer::KeepAlike(const Piece& piece, const Stream& stream) const {
  if (!sends_codes()) return;
  for (int i = piece.bucket->first_parameter; i < piece.bucket->last_parameter; ++i) {
    const FlatParameter& flat = buffers_->parameters()[i];
    const FlatRange range = Common(flat.range, piece.range);
    const ProcessGroup* const group = TensorReplicasOf(flat.parameter->sharding, groups_);
    if (range.size() == 0 || group == nullptr) continue;
    group->Broadcast(buffers_->Gradients(*piece.bucket, range), /*root=*/0, stream);
  }
}

void OuterOptimizer::Apply(const Piece& piece, double alpha, const Stream& stream) const {
  const int64_t end = piece.range.end;
  for (int64_t begin = piece.range.begin; begin < end; begin += piece_elements_)
    ApplyPart(*piece.bucket, {begin, std::min(begin + piece_elements_, end)}, alpha, stream);
}

void OuterOptimizer::ApplyPart(const Bucket& bucket, const FlatRange& range, double alpha,
                               const Stream& stream) const {
  const Tensor masters = buffers_->Masters(bucket, range), global = Global(bucket, range);
  const Tensor gradient = buffers_->Gradients(bucket, range);
  if (islands() > 1) ops::Scale(stream, static_cast<float>(1.0 / islands()), gradient);
  const Tensor local = alpha == 0 ? Tensor() : local_.At(0, DType::kFloat32, {range.size()});
  if (alpha != 0) {
    ops::Copy(stream, masters, local);
    ops::Scale(stream, static_cast<float>(alpha), local);
  }
  // The masters are overwritten in the end, and hold the change until then.
  const Tensor change = masters;
  TakeOuterStep(stream, {options_.lr, options_.momentum, options_.nesterov}, gradient,
                has_momentum() ? Momentum(bucket, range) : Tensor(), change, global);
  ops::Copy(stream, global, masters);
  if (alpha == 0) return;
  ops::Scale(stream, static_cast<float>(1 - alpha), masters);
  ops::Add(stream, local, masters);
}

void OuterOptimizer::SumCodes(const ProcessGroup& islands, const Tensor& gradient,
                              const Stream& stream) const {
  if (stream.is_meta()) return;
  const OuterGradientType type = options_.gradient_type;
  const Stream host = stream.device().type == DeviceType::kCpu ? stream : Stream::Inline();
  for (int64_t begin = 0; begin < gradient.numel(); begin += piece_elements_) {
    const int64_t count = std::min(piece_elements_, gradient.numel() - begin);
    const Tensor piece = gradient.Slice(0, begin, begin + count);
    const Tensor value = values_.At(0, DType::kFloat32, {count});
    const Tensor sum = values_.At(count * SizeOf(DType::kFloat32), DType::kFloat32, {count});
    const int64_t bytes = OuterCodeBytes(type, count);
    const Tensor mine = codes_.At(0, DType::kUInt8, {bytes});
    const Tensor all = codes_.At(bytes, DType::kUInt8, {islands.size() * bytes});
    Transport(stream, piece, sum);
    EncodeOuter(host, type, sum, mine);
    islands.AllGather(mine, all, host);
    for (int island = 0; island < islands.size(); ++island) {
      const Tensor& to = island == 0 ? sum : value;
      DecodeOuter(host, type, all.Slice(0, island * bytes, (island + 1) * bytes), to);
      if (island > 0) ops::Add(host, value, sum);
    }
    Transport(stream, sum, piece);
  }
}

void OuterOptimizer::StepFragment(int fragment, double alpha, const Stream& stream) const {
  const TraceSpan span(stream, TimeCategory::kDataParallel, kOuterStep);
  for (const Piece& piece : fragments_[fragment]) {
    FormGradient(piece, stream);
    Sum(IslandsOf(*piece.bucket), buffers_->Gradients(*piece.bucket, piece.range), stream);
    KeepAlike(piece, stream);
    Apply(piece, alpha, stream);
  }
}

void OuterOptimizer::Send(int fragment, int64_t iteration, const Stream& stream) {
  CHECK_EQ(in_flight_.fragment, -1);
  const TraceSpan span(stream, TimeCategory::kDataParallel, kOuterStep);
  const std::vector<Piece>& pieces = fragments_[fragment];
  for (const Piece& piece : pieces) {
    FormGradient(piece, stream);
    Transport(stream, buffers_->Gradients(*piece.bucket, piece.range), Sums(piece));
  }
  in_flight_ = {fragment, iteration};
  if (lane_ == nullptr) return;
  job_ = lane_->Add([this, &pieces](const Stream& lane) {
    const TraceSpan span(lane, TimeCategory::kDataParallel, "outer gradients");
    for (const Piece& piece : pieces) {
      const bool experts = piece.bucket->section == Section::kExperts;
      Sum(experts ? lane_expert_islands_ : lane_islands_, Sums(piece), lane);
    }
  });
}

void OuterOptimizer::WaitForSums() const {
  if (lane_ != nullptr) lane_->Wait(job_);
}

void OuterOptimizer::Receive(double alpha, const Stream& stream) {
  {
    const TraceSpan span(stream, TimeCategory::kDataParallel, kWaitForLane);
    WaitForSums();
  }
  const TraceSpan span(stream, TimeCategory::kDataParallel, kOuterStep);
  for (const Piece& piece : fragments_[in_flight_.fragment]) {
    Transport(stream, Sums(piece), buffers_->Gradients(*piece.bucket, piece.range));
    KeepAlike(piece, stream);
    Apply(piece, alpha, stream);
  }
  in_flight_ = {};
}

void OuterOptimizer::Resume(const InFlight& in_flight) {
  CHECK_GT(options_.sync_delay, 0);
  CHECK_LT(in_flight.fragment, options_.num_fragments);
  in_flight_ = in_flight;
}

bool OuterOptimizer::FinishStep(int64_t iteration, const Stream& stream) {
  CHECK(!options_.elsewhere);
  const bool last = iteration == options_.last_step;
  const int64_t turn = options_.sync_every / options_.num_fragments;
  const bool sends = iteration % turn == 0;
  bool changed = false;
  // A run that goes on from a checkpoint may have another delay than the one before it.
  if (in_flight_.fragment >= 0 &&
      (last || sends || iteration >= in_flight_.iteration + options_.sync_delay)) {
    Receive(options_.update_alpha, stream);
    changed = true;
  }
  if (last) {
    Step(stream);
    return true;
  }
  // The last fragment has its turn at multiples of sync_every.
  const int fragment =
      static_cast<int>((iteration / turn + options_.num_fragments - 1) % options_.num_fragments);
  if (sends && options_.sync_delay > 0) {
    Send(fragment, iteration, stream);
  } else if (sends) {
    StepFragment(fragment, options_.update_alpha, stream);
    changed = true;
  }
  if (changed) buffers_->CopyMastersToWeights(stream);
  return changed;
}

void OuterOptimizer::Step(const Stream& stream) {
  CHECK_EQ(in_flight_.fragment, -1);
  for (int fragment = 0; fragment < options_.num_fragments; ++fragment)
    StepFragment(fragment, /*alpha=*/0, stream);
  buffers_->CopyMastersToWeights(stream);
}

void OuterOptimizer::FormUpdate(const Stream& stream) const {
  for (const std::vector<Piece>& pieces : fragments_) {
    for (const Piece& piece : pieces) FormGradient(piece, stream);
  }
}

void OuterOptimizer::TakeCopy(const Stream& stream) {
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange range = buffers_->optimizer_range(bucket);
    if (range.size() == 0) continue;
    ops::Copy(stream, buffers_->Gradients(bucket, range), Global(bucket, range));
    ops::Copy(stream, Global(bucket, range), buffers_->Masters(bucket, range));
  }
  buffers_->CopyMastersToWeights(stream);
}

void OuterOptimizer::SwapWithMasters(const Stream& stream) {
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange range = buffers_->optimizer_range(bucket);
    if (range.size() == 0) continue;
    const Tensor masters = buffers_->Masters(bucket, range), global = Global(bucket, range);
    const Tensor kept = buffers_->Gradients(bucket, range);
    ops::Copy(stream, masters, kept);
    ops::Copy(stream, global, masters);
    ops::Copy(stream, kept, global);
  }
  buffers_->CopyMastersToWeights(stream);
}

}  // namespace megatron
