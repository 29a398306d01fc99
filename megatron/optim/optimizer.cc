#include "megatron/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

constexpr char kTemporaries[] = "optimizer temporaries";

// The most elements of a part that is updated in host memory: enough that neither a copy nor a loop
// over threads is short.
constexpr int64_t kHostElements = UpdateObserver::kMostElements;
// The most elements of gradients that a processor makes fp32 at once: few enough that caches have
// them when they are used.
constexpr int64_t kCachedElements = int64_t{1} << 16;

std::optional<size_t> FindDelayedGradient(const std::vector<OptimizerState>& states) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].is_delayed_gradient) return i;
  }
  return std::nullopt;
}

// Makes the padding of staged weights what it is in the buffers.
void ZeroPadding(absl::Span<const ops::OptimizerSegment> segments, const Tensor& weights) {
  if (weights.raw() == nullptr) return;  // on the meta device
  int64_t end = 0;
  const auto zero_up_to = [&](int64_t begin) {
    const int64_t bytes = SizeOf(weights.dtype());
    std::memset(static_cast<char*>(weights.raw()) + end * bytes, 0,
                static_cast<size_t>((begin - end) * bytes));
  };
  for (const ops::OptimizerSegment& segment : segments) {
    zero_up_to(segment.begin);
    end = segment.end;
  }
  zero_up_to(weights.numel());
}

}  // namespace

Optimizer::Optimizer(std::unique_ptr<const UpdateRule> rule, ParameterBuffers* buffers,
                     MemoryLedger* ledger)
    : rule_(std::move(rule)),
      buffers_(buffers),
      delayed_state_(FindDelayedGradient(buffers->options().states)),
      statistics_(buffers, ledger) {
  CHECK_EQ(buffers->num_states(), rule_->states().size());
  CHECK(buffers->options().unit == rule_->unit());
  for (size_t i = 0; i < buffers->parameters().size(); ++i) {
    for (const ParameterNumber& number : rule_->numbers()) numbers_.push_back(number.initial);
  }
  if (rule_->unit() == ShardUnit::kElement) {
    PlanRanges();
  } else {
    PlanWholeParameters();
  }
  for (const OptimizerRange& whole : optimizer_ranges_) {
    if (!whole.on_host) continue;
    // Weights in a file have no place until their extent is entered.
    host_parts_.push_back({buffers_->Gradients(*whole.bucket, whole.range),
                           buffers_->weight_file() != nullptr
                               ? Tensor()
                               : buffers_->Weights(*whole.bucket, whole.range)});
  }
}

void Optimizer::PlanWholeParameters() {
  for (const FlatParameter& flat : buffers_->parameters()) {
    const Bucket& bucket = buffers_->bucket_of(flat);
    const FlatRange here = Common(flat.range, buffers_->optimizer_range(bucket));
    if (here.size() == 0) continue;
    CHECK(here.size() == flat.range.size() || !IsWhole(rule_->unit(), *flat.parameter))
        << flat.parameter->name;
    optimizer_ranges_.push_back(
        {&bucket, here, {{0, here.size()}}, {&flat}, buffers_->HostRange(bucket, here).size() > 0});
  }
}

void Optimizer::AppendRange(const Bucket& bucket, const FlatRange& here, bool on_host) {
  if (here.size() == 0) return;
  const auto continues = [&](const OptimizerRange& last) {
    return last.range.end == here.begin && last.on_host == on_host &&
           !rule_->averages_over_ranks() &&
           (!on_host || here.end - last.range.begin <= kHostElements) &&
           !(on_host && buffers_->BeginsExtent(bucket, here.begin));
  };
  if (optimizer_ranges_.empty() || !continues(optimizer_ranges_.back()))
    optimizer_ranges_.push_back({&bucket, {here.begin, here.begin}, {}, {}, on_host});
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

void Optimizer::PlanRanges() {
  for (const Bucket& bucket : buffers_->buckets()) {
    const FlatRange here = buffers_->optimizer_range(bucket);
    if (here.size() == 0) continue;
    const FlatRange host = buffers_->HostRange(bucket, here);
    for (FlatRange part = {host.begin, 0}; part.begin < host.end; part.begin = part.end) {
      part.end = std::min(host.end, part.begin + kHostElements);
      part.end = std::min(part.end, buffers_->ExtentEnd(bucket, part.begin));
      AppendRange(bucket, part, /*on_host=*/true);
    }
    AppendRange(bucket, {host.end, here.end}, /*on_host=*/false);
  }
}

absl::Status Optimizer::PrepareHostUpdate(const Stream& stream, int threads, MemoryLedger* ledger) {
  if (host_parts_.empty() || stream.device().type == DeviceType::kCpu) return absl::OkStatus();
  int64_t most = 0;
  for (const HostPart& part : host_parts_) most = std::max(most, part.gradients.numel());
  const ParameterBuffersOptions& options = buffers_->options();
  if (delays()) {
    CHECK_EQ(host_parts_.size(), optimizer_ranges_.size()) << "a part is updated on the device";
    std::vector<Tensor> kept;
    for (const OptimizerRange& whole : optimizer_ranges_)
      kept.push_back(buffers_->State(*delayed_state_, *whole.bucket, whole.range));
    MEGATRON_ASSIGN_OR_RETURN(
        ahead_,
        UpdateAhead::Create(stream, host_parts_, kept, !buffers_->has_masters(), threads, ledger));
  } else {
    std::optional<DType> gradients, weights;
    if (!buffers_->gradients_on_host()) gradients = options.main_grads_dtype;
    if (!options.weights_on_host) weights = options.model_dtype;
    MEGATRON_ASSIGN_OR_RETURN(
        host_update_, HostUpdate::Create(stream, most, gradients, weights, !buffers_->has_masters(),
                                         threads, ledger));
  }
  if (buffers_->rounds_gradients()) {
    host_elements_ =
        Buffer(stream.is_meta() ? stream.device() : Device(),
               kCachedElements * SizeOf(DType::kFloat32), "host/optimizer staging", ledger);
  }
  return absl::OkStatus();
}

bool Optimizer::UpdatesWholeParameters() const {
  return rule_->unit() != ShardUnit::kElement || rule_->averages_over_ranks();
}

void Optimizer::PrepareWholeParameters(const ProcessGroups& groups, MemoryLedger* ledger) {
  if (!UpdatesWholeParameters()) return;
  const ParameterBuffersOptions& options = buffers_->options();
  tensor_group_ = groups.tensor;
  expert_tensor_group_ = groups.expert_tensor;
  norm_ = std::make_unique<Norm>(options.device, ledger);
  const Device meta = {DeviceType::kMeta};
  scratch_ = std::make_unique<Arena>(meta, 0, kTemporaries, nullptr);
  // The plan is of all parameters, so that ranks with other shards take as much.
  for (const FlatParameter& flat : buffers_->parameters()) {
    if (!IsWhole(rule_->unit(), *flat.parameter)) continue;
    const ops::OptimizerSegment all = {0, flat.range.size()};
    const FlatParameter* const parameter = &flat;
    PlanUpdate({&all, 1}, {&parameter, 1}, flat.range.size());
  }
  if (rule_->averages_over_ranks()) {
    for (const OptimizerRange& whole : optimizer_ranges_)
      PlanUpdate(whole.segments, whole.parameters, whole.range.size());
  }
  const int64_t bytes = scratch_->high_water();
  if (options.device.type == DeviceType::kMeta) {
    planned_scratch_ = Buffer(options.device, bytes, kTemporaries, ledger);
  } else {
    scratch_ = std::make_unique<Arena>(options.device, bytes, kTemporaries, ledger);
  }
}

void Optimizer::PlanUpdate(absl::Span<const ops::OptimizerSegment> segments,
                           absl::Span<const FlatParameter* const> parameters,
                           int64_t elements) const {
  const auto planned = [&](DType dtype) {
    return Tensor(nullptr, dtype, {elements}, {DeviceType::kMeta});
  };
  UpdateRange update;
  update.segments = segments;
  update.gradients = update.masters = planned(DType::kFloat32);
  for (const OptimizerState& state : buffers_->options().states) {
    update.states.push_back(state.Has(*parameters.front()->parameter) ? planned(state.dtype)
                                                                      : Tensor());
  }
  if (buffers_->has_masters()) update.weights = planned(buffers_->options().model_dtype);
  SetParameters(parameters, &update);
  rule_->Update(update, Stream::Meta());
}

void Optimizer::SetParameters(absl::Span<const FlatParameter* const> parameters,
                              UpdateRange* update) const {
  update->parameters = parameters;
  if (!UpdatesWholeParameters()) return;
  const Parameter* const first = parameters.front()->parameter;
  if (rule_->unit() != ShardUnit::kElement) update->parameter = first;
  update->tensor_group = first->sharding.expert_grid ? expert_tensor_group_ : tensor_group_;
  update->scratch = scratch_.get();
  update->norm = norm_.get();
}

absl::Span<float> Optimizer::NumbersOf(size_t index) {
  const size_t count = rule_->numbers().size();
  return absl::MakeSpan(numbers_).subspan(index * count, count);
}

absl::StatusOr<StepResult> Optimizer::Step(const StepOptions& options, const ProcessGroups& groups,
                                           const Stream& stream) {
  // An update that is under way reads these, and has no others.
  if (!delays()) {
    average_ = options.average;
    rank_step_ = rule_->StepAfter(applied_steps_);
  }
  const bool own_gradients = rank_step_ != RankStep::kSum;
  CHECK(!own_gradients || (rule_->averages_over_ranks() && average_ != nullptr &&
                           options.islands == nullptr && options.observer == nullptr &&
                           host_parts_.empty() && !buffers_->shards(DataSharding::kStates)));
  if (rule_->ForgetsErrorsAfter(applied_steps_)) average_->ForgetErrors(stream);
  const double unscale = 1 / options.loss_scale;
  // Each rank's own gradients are a mean's summands.
  const double ranks = own_gradients ? average_->ranks() : 1;
  MEGATRON_ASSIGN_OR_RETURN(const StepSums sums,
                            statistics_.SumStep({unscale, own_gradients, options.stop_requested,
                                                 options.log_requested, options.islands},
                                                groups, stream));

  StepResult result;
  const int islands = options.islands == nullptr ? 1 : options.islands->size();
  const double norm = std::sqrt(sums.squares * ranks);
  result.grad_norm = std::sqrt(sums.squares_of_islands * ranks / islands);
  result.finite = sums.non_finite == 0 && std::isfinite(result.grad_norm);
  result.stop_requested = sums.stop_requests != 0;
  result.log_requested = sums.log_requests != 0;
  result.applied = result.finite;
  result.weights_changed = pending_.exists;
  if (pending_.exists) FinishPendingUpdate(stream);
  if (!result.applied) return result;
  double clip = 1;
  if (options.clip_grad > 0) clip = std::min(1.0, options.clip_grad / (norm + 1e-6));
  const double grad_scale = unscale * clip * ranks;
  ++applied_steps_;
  if (delays()) {
    CHECK(options.observer == nullptr);
    Delay(options, grad_scale, stream);
    if (applied_steps_ > options.prompt_updates) return result;
    FinishPendingUpdate(stream);
  } else {
    MEGATRON_RETURN_IF_ERROR(Update(options, grad_scale, stream));
  }
  result.weights_changed = true;
  return result;
}

void Optimizer::Delay(const StepOptions& options, double grad_scale, const Stream& stream) {
  pending_.exists = true;
  pending_.lr = options.lr;
  pending_.scaled_lr = options.scaled_lr.value_or(options.lr);
  pending_.weight_decay = options.weight_decay;
  pending_.decoupled_lr = options.decoupled_lr;
  pending_.grad_scale = grad_scale;
  const TraceSpan span(stream, TimeCategory::kOptimizer, "keep gradients");
  if (ahead_ != nullptr) return ahead_->TakeGradients();
  for (const OptimizerRange& whole : optimizer_ranges_) {
    ops::Copy(stream, buffers_->Gradients(*whole.bucket, whole.range),
              buffers_->State(*delayed_state_, *whole.bucket, whole.range));
  }
}

void Optimizer::StartPendingUpdate() {
  if (!pending_.exists || ahead_ == nullptr || update_started_) return;
  update_started_ = true;
  SetRates(pending_);
  ahead_->Start([this](size_t i, const HostPart& part, const Stream& host) {
    const OptimizerRange& whole = optimizer_ranges_[i];
    Apply(*whole.bucket, whole.range, whole.segments, whole.parameters, pending_.grad_scale, part,
          host);
  });
}

void Optimizer::FinishPendingUpdate(const Stream& stream) {
  const TraceSpan span(stream, TimeCategory::kOptimizer, "update");
  if (ahead_ != nullptr) {
    StartPendingUpdate();
    ahead_->Finish();
    update_started_ = false;
  } else {
    SetRates(pending_);
    for (const OptimizerRange& whole : optimizer_ranges_) {
      UpdateElements(*whole.bucket, whole.range, whole.segments, whole.parameters,
                     pending_.grad_scale, stream);
    }
  }
  pending_ = {};
}

void Optimizer::WaitForStates() const {
  if (ahead_ != nullptr) ahead_->WaitForGradients();
}

HostPart Optimizer::PartOf(const Bucket& bucket, const FlatRange& range) const {
  return {delays() ? buffers_->State(*delayed_state_, bucket, range)
                   : buffers_->Gradients(bucket, range),
          buffers_->Weights(bucket, range)};
}

bool Optimizer::IsStaged(const Bucket& bucket, const FlatRange& range) const {
  return buffers_->options().device.type != DeviceType::kCpu &&
         buffers_->HostRange(bucket, range).size() > 0;
}

bool Optimizer::Enter(const OptimizerRange& whole, const Stream& stream) const {
  if (!whole.on_host || !buffers_->has_files()) return true;
  const TraceSpan span(stream, "wait for the disk");
  return buffers_->EnterExtent(*whole.bucket, whole.range).ok();
}

void Optimizer::UpdateElements(const Bucket& bucket, const FlatRange& range,
                               absl::Span<const ops::OptimizerSegment> segments,
                               absl::Span<const FlatParameter* const> parameters, double grad_scale,
                               const Stream& stream) {
  const HostPart part = PartOf(bucket, range);
  if (!IsStaged(bucket, range))
    return Apply(bucket, range, segments, parameters, grad_scale, part, stream);
  CHECK(host_update_ != nullptr) << "PrepareHostUpdate was not called";
  host_update_->Run(
      {&part, 1}, [] {},
      [&](size_t, const HostPart& copy, const Stream& host) {
        Apply(bucket, range, segments, parameters, grad_scale, copy, host);
      });
}

UpdateRange Optimizer::RangeOf(const Bucket& bucket, const FlatRange& range,
                               absl::Span<const ops::OptimizerSegment> segments,
                               absl::Span<const FlatParameter* const> parameters,
                               const HostPart& part) {
  UpdateRange update;
  update.segments = segments;
  update.gradients = part.gradients;
  update.masters = buffers_->has_masters() ? buffers_->Masters(bucket, range) : part.weights;
  for (size_t i = 0; i < buffers_->num_states(); ++i) {
    if (i != delayed_state_) update.states.push_back(buffers_->State(i, bucket, range));
  }
  if (buffers_->has_masters()) update.weights = part.weights;
  update.bucket = &bucket;
  if (!numbers_.empty()) {
    const auto first = static_cast<size_t>(parameters.front() - buffers_->parameters().data());
    const size_t each = rule_->numbers().size();
    update.numbers = absl::MakeSpan(numbers_).subspan(first * each, parameters.size() * each);
  }
  SetParameters(parameters, &update);
  return update;
}

void Optimizer::Apply(const Bucket& bucket, const FlatRange& range,
                      absl::Span<const ops::OptimizerSegment> segments,
                      absl::Span<const FlatParameter* const> parameters, double grad_scale,
                      const HostPart& part, const Stream& stream) {
  if (buffers_->has_masters() && IsStaged(bucket, range)) ZeroPadding(segments, part.weights);
  if (part.gradients.dtype() != DType::kFloat32)
    return ApplyRounded(bucket, range, segments, parameters, grad_scale, part, stream);
  UpdateRange update = RangeOf(bucket, range, segments, parameters, part);
  update.grad_scale = static_cast<float>(grad_scale);
  update.step = applied_steps_;
  update.rank_step = rank_step_;
  update.average = average_;
  update.local_rates = local_rates_;
  rule_->Update(update, stream);
}

// The result for an element does not depend on how elements are cut into ranges.
void Optimizer::ApplyRounded(const Bucket& bucket, const FlatRange& range,
                             absl::Span<const ops::OptimizerSegment> segments,
                             absl::Span<const FlatParameter* const> parameters, double grad_scale,
                             const HostPart& part, const Stream& stream) {
  const Tensor scratch = IsStaged(bucket, range)
                             ? host_elements_.At(0, DType::kFloat32,
                                                 {host_elements_.bytes() / SizeOf(DType::kFloat32)})
                             : statistics_.scratch();
  int64_t most = scratch.numel();
  if (stream.device().type == DeviceType::kCpu) most = std::min(most, kCachedElements);
  for (int64_t begin = 0, end = 0; begin < range.size(); begin = end) {
    end = std::min(range.size(), begin + most);
    std::vector<ops::OptimizerSegment> segments_here;
    std::vector<const FlatParameter*> parameters_here;
    for (size_t i = 0; i < segments.size(); ++i) {
      ops::OptimizerSegment segment = segments[i];
      segment.begin = std::max(segment.begin, begin) - begin;
      segment.end = std::min(segment.end, end) - begin;
      if (segment.begin >= segment.end) continue;
      segments_here.push_back(segment);
      parameters_here.push_back(parameters[i]);
    }
    if (segments_here.empty()) continue;  // padding
    const Tensor gradients = scratch.Slice(0, 0, end - begin);
    ops::Copy(stream, part.gradients.Slice(0, begin, end), gradients);
    Apply(bucket, {range.begin + begin, range.begin + end}, segments_here, parameters_here,
          grad_scale, {gradients, part.weights.Slice(0, begin, end)}, stream);
  }
}

void Optimizer::MakeLocalWeights(const Stream& stream) {
  for (const OptimizerRange& whole : optimizer_ranges_) {
    rule_->MakeWeights(RangeOf(*whole.bucket, whole.range, whole.segments, whole.parameters,
                               PartOf(*whole.bucket, whole.range)),
                       stream);
  }
}

// The result for an element does not depend on how elements are cut into ranges.
void Optimizer::UpdateObserved(const OptimizerRange& whole, UpdateObserver* observer,
                               double grad_scale, const Stream& stream) {
  const bool whole_parameters = rule_->unit() != ShardUnit::kElement;
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
      UpdateElements(buffers_->bucket_of(flat), piece, {&segment, 1}, {&whole.parameters[i], 1},
                     grad_scale, stream);
      observer->AfterUpdate(flat, piece, stream);
    }
  }
}

void Optimizer::SetRates(const PendingUpdate& pending) {
  StepOptions options;
  options.lr = pending.lr;
  options.decoupled_lr = pending.decoupled_lr;
  options.scaled_lr = pending.scaled_lr;
  options.weight_decay = pending.weight_decay;
  SetRates(options);
}

void Optimizer::SetRates(const StepOptions& options) {
  const auto rate_of = [&](const Parameter& parameter) {
    if (parameter.is_embedding_or_output && options.decoupled_lr) return *options.decoupled_lr;
    return parameter.has_scaled_lr ? options.scaled_lr.value_or(options.lr) : options.lr;
  };
  for (OptimizerRange& whole : optimizer_ranges_) {
    for (size_t i = 0; i < whole.segments.size(); ++i) {
      const Parameter& parameter = *whole.parameters[i]->parameter;
      whole.segments[i].lr = static_cast<float>(rate_of(parameter));
      whole.segments[i].epsilon_factor = parameter.epsilon_factor;
      whole.segments[i].weight_decay =
          parameter.weight_decay ? static_cast<float>(options.weight_decay) : 0;
    }
  }
}

absl::Status Optimizer::Update(const StepOptions& options, double grad_scale,
                               const Stream& stream) {
  const TraceSpan span(stream, TimeCategory::kOptimizer, "update");
  SetRates(options);
  const bool is_local = rank_step_ == RankStep::kLocal || rank_step_ == RankStep::kJoin;
  if (is_local) local_rates_ += options.lr;
  buffers_->StartUpdate();
  if (options.observer == nullptr) {
    UpdateRanges(grad_scale, stream);
  } else {
    for (const OptimizerRange& whole : optimizer_ranges_) {
      if (Enter(whole, stream)) UpdateObserved(whole, options.observer, grad_scale, stream);
    }
  }
  if (rank_step_ == RankStep::kJoin) local_rates_ = 0;
  return buffers_->EndUpdate();
}

void Optimizer::UpdateRanges(double grad_scale, const Stream& stream) {
  const auto on_device = [&] {
    for (size_t i = host_parts_.size(); i < optimizer_ranges_.size(); ++i) {
      const OptimizerRange& whole = optimizer_ranges_[i];
      UpdateElements(*whole.bucket, whole.range, whole.segments, whole.parameters, grad_scale,
                     stream);
    }
  };
  const auto on_host = [&](size_t i, const HostPart& part, const Stream& host) {
    const OptimizerRange& whole = optimizer_ranges_[i];
    if (!Enter(whole, stream)) return;
    HostPart entered = part;
    if (buffers_->weight_file() != nullptr)
      entered.weights = buffers_->Weights(*whole.bucket, whole.range);
    Apply(*whole.bucket, whole.range, whole.segments, whole.parameters, grad_scale, entered, host);
  };
  if (host_parts_.empty()) return on_device();
  if (buffers_->options().device.type == DeviceType::kCpu) {
    for (size_t i = 0; i < host_parts_.size(); ++i) on_host(i, host_parts_[i], stream);
    return on_device();
  }
  CHECK(host_update_ != nullptr) << "PrepareHostUpdate was not called";
  host_update_->Run(host_parts_, on_device, on_host);
}

}  // namespace megatron
