#include "megatron/pipeline/executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/pipeline/span_names.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

using Tensors = absl::InlinedVector<Tensor, 4>;

int64_t AlignedBytes(const TensorSpec& spec) {
  return RoundUp(spec.shape.numel() * SizeOf(spec.dtype), Buffer::kAlignment);
}

int64_t AlignedBytes(const std::vector<TensorSpec>& specs) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += AlignedBytes(spec);
  return bytes;
}

// The tensors of one edge, one after the other in a block of bytes.
Tensors Place(const std::vector<TensorSpec>& specs, const Tensor& block) {
  Tensors tensors;
  int64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    CHECK_LE(offset + AlignedBytes(spec), block.bytes());
    char* const base = static_cast<char*>(block.raw());
    tensors.emplace_back(base == nullptr ? nullptr : base + offset, spec.dtype, spec.shape,
                         block.device());
    offset += AlignedBytes(spec);
  }
  return tensors;
}

class Runner {
 public:
  Runner(const StagePlan& plan, Stage* stage, const ProcessGroup& pipeline, Arena* arena,
         const Stream& stream)
      : plan_(plan), stage_(*stage), pipeline_(pipeline), arena_(arena), stream_(stream) {
    int64_t outgoing_bytes = 0;
    for (int chunk = 0; chunk < plan.chunks(); ++chunk) {
      const int64_t input = plan.has_input(chunk) ? LargestEdge(chunk, &Stage::InputSpecs) : 0;
      const int64_t output = plan.has_output(chunk) ? LargestEdge(chunk, &Stage::OutputSpecs) : 0;
      inputs_.push_back(Allocate(plan.input_slots[chunk], input, "pipeline/inputs"));
      gradients_.push_back(Allocate(plan.gradient_slots[chunk], output, "pipeline/gradients"));
      receiving_inputs_.emplace_back(plan.input_slots[chunk]);
      receiving_gradients_.emplace_back(plan.gradient_slots[chunk]);
      outgoing_bytes = std::max(outgoing_bytes, output);
      if (plan.has_input_gradient(chunk)) outgoing_bytes = std::max(outgoing_bytes, input);
    }
    if (plan.stages > 1) outgoing_ = Allocate(kOutgoing, outgoing_bytes, "pipeline/outgoing");
  }

  absl::Status Run() {
    for (const Step& step : plan_.steps) {
      if (step.is_exchange()) {
        Exchange(step);
      } else {
        Await(step);
        if (!pipeline_.status().ok()) break;
        Act(step);
      }
    }
    // What was received has been waited for where it was used, but for a failure.
    for (AsyncCall& call : sending_) Await(&call);
    for (auto* receiving : {&receiving_inputs_, &receiving_gradients_}) {
      for (std::vector<AsyncCall>& calls : *receiving) {
        for (AsyncCall& call : calls) Await(&call);
      }
    }
    return pipeline_.status();
  }

  absl::Status RunAndMeasure(Timeline* timeline) {
    pipeline_.Barrier(stream_);
    zero_ = Clock::now();
    timeline_ = timeline;
    return Run();
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Specs = std::vector<TensorSpec> (Stage::*)(int, int) const;
  using Blocks = absl::InlinedVector<Tensor, 8>;
  using Calls = absl::InlinedVector<std::vector<AsyncCall>, 1>;
  // A result is written to one block while that in the other is sent.
  static constexpr int kOutgoing = 2;

  int64_t LargestEdge(int chunk, Specs specs) const {
    int64_t bytes = 0;
    for (int microbatch = 0; microbatch < plan_.microbatches; ++microbatch) {
      bytes = std::max(bytes, AlignedBytes((stage_.*specs)(microbatch, chunk)));
    }
    return bytes;
  }

  Blocks Allocate(int count, int64_t bytes, const char* name) {
    Blocks blocks(count);
    if (bytes == 0) return blocks;
    CHECK(arena_ != nullptr) << "a plan with edges needs an arena";
    for (Tensor& block : blocks) block = arena_->Allocate(DType::kUInt8, {bytes}, name);
    return blocks;
  }

  Tensors Inputs(int microbatch, int chunk, int slot) const {
    if (!plan_.has_input(chunk)) return {};
    return Place(stage_.InputSpecs(microbatch, chunk), inputs_[chunk][slot]);
  }
  Tensors OutputGradients(int microbatch, int chunk, int slot) const {
    if (!plan_.has_output(chunk)) return {};
    return Place(stage_.OutputSpecs(microbatch, chunk), gradients_[chunk][slot]);
  }

  double Now() const { return std::chrono::duration<double>(Clock::now() - zero_).count(); }

  static void Await(AsyncCall* call) {
    call->Wait();
    *call = AsyncCall();
  }

  // Waits for what the action reads, and for the place of its result.
  void Await(const Step& step) {
    const auto [kind, microbatch, chunk] = step.action;
    if (kind == ActionKind::kBackwardWeight || plan_.IsEmpty(step)) return;
    const bool forward = kind == ActionKind::kForward;
    if (forward && plan_.has_input(chunk)) Await(&receiving_inputs_[chunk][step.input_slot]);
    if (!forward && plan_.has_output(chunk))
      Await(&receiving_gradients_[chunk][step.gradient_slot]);
    const bool has_result = forward ? plan_.has_output(chunk) : plan_.has_input_gradient(chunk);
    if (has_result && step.result_slot < 0) Await(&sending_[next_]);
  }

  void Act(const Step& step) {
    const auto [kind, microbatch, chunk] = step.action;
    const TraceSpan span(stream_, TimeCategory::kCompute, SpanName(kind), microbatch,
                         {{"chunk", chunk}});
    const double start = timeline_ == nullptr ? 0 : Now();
    if (kind == ActionKind::kForward) {
      Forward(step);
    } else if (!plan_.IsEmpty(step)) {
      Backward(step);
    }
    if (timeline_ != nullptr) timeline_->push_back({step.action, start, Now()});
  }

  void Forward(const Step& step) {
    const auto [kind, microbatch, chunk] = step.action;
    Tensors outputs;
    if (plan_.has_output(chunk)) {
      outputs =
          Place(stage_.OutputSpecs(microbatch, chunk),
                step.result_slot < 0 ? outgoing_[next_] : inputs_[chunk + 1][step.result_slot]);
    }
    const Tensors inputs = Inputs(microbatch, chunk, step.input_slot);
    stage_.Forward({microbatch, chunk, step.slot}, inputs, outputs, stream_);
  }

  void Backward(const Step& step) {
    const auto [kind, microbatch, chunk] = step.action;
    const WorkItem item = {microbatch, chunk, step.slot, step.deferred_slot};
    if (kind == ActionKind::kBackwardWeight) return stage_.BackwardWeight(item, stream_);
    Tensors input_gradients;
    if (plan_.has_input_gradient(chunk)) {
      input_gradients =
          Place(stage_.InputSpecs(microbatch, chunk),
                step.result_slot < 0 ? outgoing_[next_] : gradients_[chunk - 1][step.result_slot]);
    }
    stage_.Backward(item, OutputGradients(microbatch, chunk, step.gradient_slot), input_gradients,
                    stream_);
  }

  // Starts an exchange. Edges are tuples: each message is as many transfers as its edge has
  // tensors.
  void Exchange(const Step& step) {
    absl::InlinedVector<Transfer, 4> sends, receives;
    for (const Message& message : step.sends) {
      const auto specs = message.gradient ? stage_.InputSpecs(message.microbatch, message.chunk)
                                          : stage_.OutputSpecs(message.microbatch, message.chunk);
      for (const Tensor& tensor : Place(specs, outgoing_[next_]))
        sends.push_back({message.peer, tensor});
    }
    for (const Message& message : step.receives) {
      const Tensors tensors = message.gradient
                                  ? OutputGradients(message.microbatch, message.chunk, message.slot)
                                  : Inputs(message.microbatch, message.chunk, message.slot);
      for (const Tensor& tensor : tensors) receives.push_back({message.peer, tensor});
    }
    const AsyncCall call = StartAsync(
        pipeline_, stream_, TimeCategory::kPipelineParallel,
        [name = ExchangeName(step), sends = std::move(sends), receives = std::move(receives)](
            const ProcessGroup& group, const Stream& stream) {
          const TraceSpan span(stream, TimeCategory::kPipelineParallel, name);
          group.Exchange(sends, receives, stream);
        });
    for (const Message& message : step.receives) {
      (message.gradient ? receiving_gradients_ : receiving_inputs_)[message.chunk][message.slot] =
          call;
    }
    if (step.sends.empty()) return;
    sending_[next_] = call;
    next_ = (next_ + 1) % kOutgoing;
  }

  const StagePlan& plan_;
  Stage& stage_;
  const ProcessGroup& pipeline_;
  Arena* const arena_;
  const Stream& stream_;
  absl::InlinedVector<Blocks, 1> inputs_, gradients_;  // indexed by chunk and slot
  Calls receiving_inputs_, receiving_gradients_;       // likewise; the calls that fill the slots
  Blocks outgoing_;
  std::array<AsyncCall, kOutgoing> sending_;  // the calls that send from these blocks
  int next_ = 0;                              // the block of the next result
  Timeline* timeline_ = nullptr;              // null: nothing is measured
  Clock::time_point zero_;
};

}  // namespace

absl::Status RunSchedule(const StagePlan& plan, Stage* stage, const ProcessGroup& pipeline,
                         Arena* arena, const Stream& stream) {
  CHECK_EQ(plan.stages, pipeline.size());
  CHECK_EQ(plan.stage, pipeline.rank());
  std::optional<Arena::Scope> scope;
  if (arena != nullptr) scope.emplace(arena);
  return Runner(plan, stage, pipeline, arena, stream).Run();
}

absl::StatusOr<Timeline> RunScheduleAndMeasure(const StagePlan& plan, Stage* stage,
                                               const ProcessGroup& pipeline, Arena* arena,
                                               const Stream& stream) {
  CHECK_EQ(plan.stages, pipeline.size());
  CHECK_EQ(plan.stage, pipeline.rank());
  CHECK(stream.device().type == DeviceType::kCpu) << stream.device();
  std::optional<Arena::Scope> scope;
  if (arena != nullptr) scope.emplace(arena);
  Timeline timeline;
  MEGATRON_RETURN_IF_ERROR(Runner(plan, stage, pipeline, arena, stream).RunAndMeasure(&timeline));
  return timeline;
}

absl::StatusOr<std::vector<Timeline>> GatherTimelines(const Schedule& schedule,
                                                      const Timeline& mine,
                                                      const ProcessGroup& pipeline,
                                                      const Stream& stream) {
  // The order of actions is known; only times travel.
  size_t most = 0;
  for (const auto& actions : schedule.actions) most = std::max(most, actions.size());
  CHECK_EQ(mine.size(), schedule.actions[pipeline.rank()].size());
  const auto bytes = static_cast<int64_t>(2 * most * sizeof(double));
  std::vector<double> times(2 * most), all(times.size() * pipeline.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    times[2 * i] = mine[i].start;
    times[2 * i + 1] = mine[i].end;
  }
  pipeline.AllGather(Tensor(times.data(), DType::kUInt8, {bytes}),
                     Tensor(all.data(), DType::kUInt8, {bytes * pipeline.size()}), stream);
  MEGATRON_RETURN_IF_ERROR(pipeline.status());
  std::vector<Timeline> timelines(schedule.stages);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const double* const times_of_stage = &all[stage * times.size()];
    for (size_t i = 0; i < schedule.actions[stage].size(); ++i) {
      timelines[stage].push_back(
          {schedule.actions[stage][i], times_of_stage[2 * i], times_of_stage[2 * i + 1]});
    }
  }
  return timelines;
}

}  // namespace megatron
