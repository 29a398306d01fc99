#include "megatron/models/text_generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "glog/logging.h"
#include "megatron/base/philox.h"
#include "megatron/models/model_stage.h"
#include "megatron/pipeline/executor.h"
#include "megatron/pipeline/schedule.h"

namespace megatron {

int32_t SampleToken(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    float uniform) {
  if (options.temperature == 0)
    return static_cast<int32_t>(std::max_element(logits, logits + vocab_size) - logits);
  std::vector<int32_t> order(vocab_size);
  std::iota(order.begin(), order.end(), 0);
  // Ties go to the lower token, so that the result does not depend on the sort.
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  if (options.top_k > 0 && options.top_k < vocab_size) order.resize(options.top_k);
  std::vector<double> cumulative;
  double sum = 0;
  for (int32_t token : order)
    cumulative.push_back(
        sum += std::exp((double{logits[token]} - logits[order[0]]) / options.temperature));
  size_t kept = order.size();
  if (options.top_p > 0 && options.top_p < 1) {
    kept = std::lower_bound(cumulative.begin(), cumulative.end(), options.top_p * sum) -
           cumulative.begin() + 1;
    kept = std::min(kept, order.size());
  }
  const double target = uniform * cumulative[kept - 1];
  const size_t drawn =
      std::lower_bound(cumulative.begin(), cumulative.begin() + kept, target) - cumulative.begin();
  return order[std::min(drawn, kept - 1)];
}

TextGenerator::TextGenerator(const GeneratorSetup& setup, const GeneratorLimits& limits,
                             const Stream& stream, MemoryLedger* ledger)
    : setup_(setup), batches_(1), limits_(limits), stream_(stream) {
  const StagePlacement& placement = setup.stage->placement();
  InterleavedOptions schedule;
  schedule.stages = setup.pipeline.size();
  schedule.chunks = placement.chunks;
  plan_ = PlanStage(ForwardSchedule(schedule, placement.order), setup.pipeline.rank());
  int64_t offset = 0;
  const int64_t bytes =
      (limits.max_context + limits.max_encoder_context) * 4 * SizeOf(DType::kInt64) +
      2 * Buffer::kAlignment + setup.stage->padded_vocab_size() * SizeOf(DType::kFloat32);
  buffer_ = Buffer(stream.device(), bytes, "generation", ledger);
  auto next = [&](DType dtype, int64_t count) {
    const Tensor tensor = buffer_.At(offset, dtype, {count});
    offset += (tensor.bytes() + 7) / 8 * 8;
    return tensor;
  };
  whole_.tokens_T = next(DType::kInt32, limits.max_context);
  whole_.position_T = next(DType::kInt32, limits.max_context);
  whole_.sample_T = next(DType::kInt64, limits.max_context);
  whole_.sample_position_T = whole_.position_T;
  whole_.token_type_T = next(DType::kInt32, limits.max_context);
  whole_.cu_seqlens = next(DType::kInt32, 2);
  EncoderBatch& encoder = whole_.encoder;
  if (limits.max_encoder_context > 0) {
    encoder.tokens_T = next(DType::kInt32, limits.max_encoder_context);
    encoder.position_T = encoder.sample_position_T =
        next(DType::kInt32, limits.max_encoder_context);
    encoder.sample_T = next(DType::kInt64, limits.max_encoder_context);
    encoder.cu_seqlens = next(DType::kInt32, 2);
  }
  logits_V_ = next(DType::kFloat32, setup.stage->padded_vocab_size());
  host_ = HostMirror(buffer_.At(0, DType::kUInt8, {bytes}), "generation");
  if (stream.is_meta()) return;
  for (const Tensor& positions : {whole_.position_T, encoder.position_T}) {
    if (positions.empty()) continue;
    int32_t* const first = host_.Of(positions).data<int32_t>();
    std::iota(first, first + positions.numel(), 0);
  }
  std::fill_n(host_.Of(whole_.token_type_T).data<int32_t>(), limits.max_context, 0);
}

MicroBatch TextGenerator::FirstTokens(int64_t count) const {
  MicroBatch batch = whole_;
  for (Tensor* tensor : {&batch.tokens_T, &batch.position_T, &batch.sample_T,
                         &batch.sample_position_T, &batch.token_type_T}) {
    *tensor = tensor->Slice(0, 0, count);
  }
  batch.max_seqlen = count;
  if (limits_.max_encoder_context > 0) batch.encoder = FirstEncoderTokens(encoder_tokens_);
  return batch;
}

EncoderBatch TextGenerator::FirstEncoderTokens(int64_t count) const {
  EncoderBatch encoder = whole_.encoder;
  for (Tensor* tensor :
       {&encoder.tokens_T, &encoder.position_T, &encoder.sample_T, &encoder.sample_position_T}) {
    *tensor = tensor->Slice(0, 0, count);
  }
  encoder.max_seqlen = count;
  return encoder;
}

void TextGenerator::Read(absl::Span<const int32_t> tokens) {
  encoder_tokens_ = static_cast<int64_t>(tokens.size());
  CHECK(encoder_tokens_ >= 1 && encoder_tokens_ <= limits_.max_encoder_context) << tokens.size();
  const EncoderBatch encoder = FirstEncoderTokens(encoder_tokens_);
  std::copy(tokens.begin(), tokens.end(), host_.Of(encoder.tokens_T).data<int32_t>());
  host_.Of(encoder.cu_seqlens).data<int32_t>()[1] = static_cast<int32_t>(encoder_tokens_);
}

absl::Status TextGenerator::RunStages(const MicroBatch& batch, int64_t token) {
  batches_[0] = batch;
  setup_.stage->StartStep(
      {setup_.memory, setup_.blocks, &batches_, StageMode::kPredict, token, logits_V_});
  return RunSchedule(plan_, setup_.stage, setup_.pipeline, &setup_.memory->edges, stream_);
}

void TextGenerator::Measure() {
  CHECK(stream_.is_meta());
  encoder_tokens_ = limits_.max_encoder_context;
  CHECK_EQ(RunStages(FirstTokens(limits_.max_context), limits_.max_context - 1), absl::OkStatus());
}

bool TextGenerator::Predict(absl::Span<const int32_t> tokens, int64_t token) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  const MicroBatch batch = FirstTokens(count);
  std::copy(tokens.begin(), tokens.end(), host_.Of(batch.tokens_T).data<int32_t>());
  host_.Of(batch.cu_seqlens).data<int32_t>()[1] = static_cast<int32_t>(count);
  host_.Send(stream_);
  if (!RunStages(batch, token).ok()) return false;
  setup_.pipeline.Broadcast(logits_V_, setup_.stage->placement().last_stage(), stream_);
  host_.Fetch(stream_);
  return setup_.pipeline.status().ok();
}

absl::Span<const float> TextGenerator::LogitsAt(absl::Span<const int32_t> tokens, int64_t token) {
  CHECK_LE(static_cast<int64_t>(tokens.size()), limits_.max_context);
  if (!Predict(tokens, token)) return {};
  return absl::MakeConstSpan(host_.Of(logits_V_).data<float>(),
                             static_cast<size_t>(limits_.vocab_size));
}

void TextGenerator::Generate(const SamplingOptions& sampling, int64_t count,
                             std::vector<int32_t>* tokens,
                             absl::FunctionRef<bool(int32_t token)> on_token) {
  CHECK(!tokens->empty());
  const PhiloxKey key = DeriveKey(sampling.seed, kPhiloxSampling, 0, 0);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t context =
        std::min<int64_t>(static_cast<int64_t>(tokens->size()), limits_.max_context);
    const auto last =
        absl::MakeConstSpan(*tokens).subspan(tokens->size() - static_cast<size_t>(context));
    if (!Predict(last, context - 1)) return;
    const PhiloxBlock words = Philox(key, {{static_cast<uint32_t>(i), 0, 0, 0}});
    tokens->push_back(SampleToken(host_.Of(logits_V_).data<float>(), limits_.vocab_size, sampling,
                                  UniformOpenZero(words.word[0])));
    if (!on_token(tokens->back())) return;
  }
}

}  // namespace megatron
