#include "megatron/models/cached_model.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/models/model_stage.h"
#include "megatron/pipeline/executor.h"

namespace megatron {

CachedModel::CachedModel(const GeneratorSetup& setup, const CachedModelLimits& limits,
                         const Stream& stream, MemoryLedger* ledger)
    : setup_(setup),
      plan_(PlanPrediction(setup)),
      limits_(limits),
      stream_(stream),
      cache_(setup.stage->MakeCache(limits.slots, limits.max_context, stream, ledger)),
      states_(setup.stage->MakeStates(limits.slots, stream, ledger)),
      next_position_(setup.stage->HasStates() ? limits.slots : 0),
      batches_(1) {
  const int64_t tokens = limits.max_tokens, rows = limits.max_logits;
  const int64_t numbers = 5 * RoundUp(tokens * SizeOf(DType::kInt64), Buffer::kAlignment) +
                          RoundUp(rows * SizeOf(DType::kInt32), Buffer::kAlignment) +
                          RoundUp((limits.slots + 1) * SizeOf(DType::kInt32), Buffer::kAlignment);
  numbers_ = Buffer(stream.device(), numbers, "generation", ledger);
  int64_t offset = 0;
  const auto next = [&](DType dtype, const Shape& shape) {
    const Tensor tensor = numbers_.At(offset, dtype, shape);
    offset += RoundUp(tensor.bytes(), Buffer::kAlignment);
    return tensor;
  };
  all_.tokens_T = next(DType::kInt32, {tokens});
  all_.position_T = all_.sample_position_T = next(DType::kInt32, {tokens});
  all_.sample_T = next(DType::kInt64, {tokens});
  all_.token_type_T = next(DType::kInt32, {tokens});
  place_T11_ = next(DType::kInt32, {tokens, 1, 1});
  predicted_P_ = next(DType::kInt32, {rows});
  all_.cu_seqlens = next(DType::kInt32, {limits.slots + 1});
  host_numbers_ = HostMirror(numbers_.At(0, DType::kUInt8, {numbers}), "generation");
  const Shape logits{rows, setup.stage->padded_vocab_size()};
  logits_ = Buffer(stream.device(), logits.numel() * SizeOf(DType::kFloat32), "generation", ledger);
  logits_PV_ = logits_.At(0, DType::kFloat32, logits);
  host_logits_ = HostMirror(logits_PV_, "generation");
  cached_.cache = &cache_;
  cached_.states = &states_;
}

MicroBatch CachedModel::FirstTokens(int64_t tokens, int64_t longest) const {
  MicroBatch batch = all_;
  for (Tensor* tensor : {&batch.tokens_T, &batch.position_T, &batch.sample_T,
                         &batch.sample_position_T, &batch.token_type_T}) {
    *tensor = tensor->Slice(0, 0, tokens);
  }
  batch.max_seqlen = longest;
  return batch;
}

bool CachedModel::RunBatch(const MicroBatch& batch, int64_t rows) {
  batches_[0] = batch;
  cached_.place_T11 = place_T11_.Slice(0, 0, batch.num_tokens());
  StepInputs step;
  step.memory = setup_.memory;
  step.blocks = setup_.blocks;
  step.batches = &batches_;
  step.mode = StageMode::kPredict;
  step.cached = &cached_;
  if (rows > 0) {
    step.predicted_P = predicted_P_.Slice(0, 0, rows);
    step.predicted_logits_PV = logits_PV_.Slice(0, 0, rows);
  }
  setup_.stage->StartStep(step);
  return RunSchedule(plan_, setup_.stage, setup_.pipeline, &setup_.memory->edges, stream_).ok();
}

void CachedModel::Measure() {
  CHECK(stream_.is_meta());
  const int64_t longest = std::min(limits_.max_tokens, limits_.max_context);
  CHECK(RunBatch(FirstTokens(limits_.max_tokens, longest), limits_.max_logits));
}

bool CachedModel::Run(absl::Span<const NewToken> tokens) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  CHECK(count >= 1 && count <= limits_.max_tokens) << count;
  int32_t* const token = host_numbers_.Of(all_.tokens_T).data<int32_t>();
  int32_t* const position = host_numbers_.Of(all_.position_T).data<int32_t>();
  int64_t* const sample = host_numbers_.Of(all_.sample_T).data<int64_t>();
  int32_t* const place = host_numbers_.Of(place_T11_).data<int32_t>();
  int32_t* const predicted = host_numbers_.Of(predicted_P_).data<int32_t>();
  int32_t* const begin = host_numbers_.Of(all_.cu_seqlens).data<int32_t>();
  std::fill_n(begin, limits_.slots + 1, 0);
  int64_t rows = 0, longest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const NewToken& mine = tokens[i];
    CHECK(mine.slot >= 0 && mine.slot < limits_.slots && mine.position >= 0 &&
          mine.position < limits_.max_context)
        << "slot " << mine.slot << ", position " << mine.position;
    if (i > 0) {
      const NewToken& before = tokens[i - 1];
      CHECK(before.slot < mine.slot ||
            (before.slot == mine.slot && before.position + 1 == mine.position));
    }
    if (has_states()) {
      int64_t& next = next_position_[mine.slot];
      CHECK(mine.position == 0 || mine.position == next)
          << "slot " << mine.slot << " has the states of " << next << " tokens, and goes on at "
          << mine.position;
      next = mine.position + 1;
    }
    token[i] = mine.token;
    position[i] = mine.position;
    sample[i] = mine.slot;
    place[i] = static_cast<int32_t>(mine.slot * limits_.max_context + mine.position);
    ++begin[mine.slot + 1];
    longest = std::max<int64_t>(longest, begin[mine.slot + 1]);
    if (!mine.wants_logits) continue;
    CHECK_LT(rows, limits_.max_logits);
    predicted[rows++] = static_cast<int32_t>(i);
  }
  for (int64_t slot = 0; slot < limits_.slots; ++slot) begin[slot + 1] += begin[slot];
  host_numbers_.Send(stream_);
  if (!RunBatch(FirstTokens(count, longest), rows)) return false;
  if (rows > 0) {
    const Tensor found = logits_PV_.Slice(0, 0, rows);
    setup_.pipeline.Broadcast(found, setup_.stage->placement().last_stage(), stream_);
    const Tensor host = host_logits_.Of(found);
    if (host.raw() != found.raw()) Transport(stream_, found, host);
  }
  return setup_.pipeline.status().ok();
}

const float* CachedModel::logits(int64_t i) const {
  return host_logits_.host().data<float>() + i * logits_PV_.dim(1);
}

}  // namespace megatron
