#include "megatron/models/text_generator.h"

#include <algorithm>
#include <numeric>

#include "glog/logging.h"
#include "megatron/base/philox.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/model_stage.h"
#include "megatron/pipeline/executor.h"

namespace megatron {

TextGenerator::TextGenerator(const GeneratorSetup& setup, const GeneratorLimits& limits,
                             const Stream& stream, MemoryLedger* ledger)
    : setup_(setup), plan_(PlanPrediction(setup)), batches_(1), limits_(limits), stream_(stream) {
  if (setup.stage->TakesCache()) {
    CachedModelLimits cached;
    cached.max_context = cached.max_tokens = limits.max_context;
    cached_ = std::make_unique<CachedModel>(setup, cached, stream, ledger);
    return;
  }
  int64_t offset = 0;
  const int64_t bytes =
      (limits.max_context + limits.max_encoder_context) * 4 * SizeOf(DType::kInt64) +
      3 * Buffer::kAlignment + setup.stage->padded_vocab_size() * SizeOf(DType::kFloat32);
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
  predicted_1_ = next(DType::kInt32, 1);
  logits_1V_ = next(DType::kFloat32, setup.stage->padded_vocab_size())
                   .View({1, setup.stage->padded_vocab_size()});
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

absl::Status TextGenerator::RunStages(const MicroBatch& batch) {
  batches_[0] = batch;
  setup_.stage->StartStep(
      {setup_.memory, setup_.blocks, &batches_, StageMode::kPredict, predicted_1_, logits_1V_});
  return RunSchedule(plan_, setup_.stage, setup_.pipeline, &setup_.memory->edges, stream_);
}

void TextGenerator::Measure() {
  CHECK(stream_.is_meta());
  if (cached_ != nullptr) return cached_->Measure();
  encoder_tokens_ = limits_.max_encoder_context;
  CHECK_EQ(RunStages(FirstTokens(limits_.max_context)), absl::OkStatus());
}

// What the cache has in common with the tokens stays. Where a text has outgrown the context, its
// first token goes with each new one, and that is nothing. States are those of all tokens seen:
// where these are not the first ones of the text, it begins anew.
const float* TextGenerator::PredictFromCache(absl::Span<const int32_t> tokens) {
  size_t first = 0;
  while (first + 1 < tokens.size() && first < seen_.size() && seen_[first] == tokens[first])
    ++first;
  if (cached_->has_states() && first < seen_.size()) first = 0;
  std::vector<NewToken> rest;
  for (size_t i = first; i < tokens.size(); ++i)
    rest.push_back({0, static_cast<int32_t>(i), tokens[i], i + 1 == tokens.size()});
  seen_.assign(tokens.begin(), tokens.end());
  return cached_->Run(rest) ? cached_->logits(0) : nullptr;
}

const float* TextGenerator::Predict(absl::Span<const int32_t> tokens, int64_t token) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  const MicroBatch batch = FirstTokens(count);
  std::copy(tokens.begin(), tokens.end(), host_.Of(batch.tokens_T).data<int32_t>());
  host_.Of(batch.cu_seqlens).data<int32_t>()[1] = static_cast<int32_t>(count);
  host_.Of(predicted_1_).data<int32_t>()[0] = static_cast<int32_t>(token);
  host_.Send(stream_);
  if (!RunStages(batch).ok()) return nullptr;
  setup_.pipeline.Broadcast(logits_1V_, setup_.stage->placement().last_stage(), stream_);
  host_.Fetch(stream_);
  return setup_.pipeline.status().ok() ? host_.Of(logits_1V_).data<float>() : nullptr;
}

absl::Span<const float> TextGenerator::LogitsAt(absl::Span<const int32_t> tokens, int64_t token) {
  CHECK_LE(static_cast<int64_t>(tokens.size()), limits_.max_context);
  CHECK(cached_ == nullptr) << "a GPT sees nothing of what follows a token";
  const float* const logits = Predict(tokens, token);
  if (logits == nullptr) return {};
  return absl::MakeConstSpan(logits, static_cast<size_t>(limits_.vocab_size));
}

absl::Status TextGenerator::Generate(const SamplingOptions& sampling, int64_t count,
                                     std::vector<int32_t>* tokens,
                                     absl::FunctionRef<bool(int32_t token)> on_token) {
  CHECK(!tokens->empty());
  const PhiloxKey key = DeriveKey(sampling.seed, kPhiloxSampling, 0, 0);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t context =
        std::min<int64_t>(static_cast<int64_t>(tokens->size()), limits_.max_context);
    const auto last =
        absl::MakeConstSpan(*tokens).subspan(tokens->size() - static_cast<size_t>(context));
    const float* const logits =
        cached_ != nullptr ? PredictFromCache(last) : Predict(last, context - 1);
    if (logits == nullptr) return absl::UnavailableError("a rank was lost");
    // All ranks have the same bits, so they go the same way.
    MEGATRON_RETURN_IF_ERROR(CheckLogits(logits, limits_.vocab_size));
    const PhiloxBlock words = Philox(key, {{static_cast<uint32_t>(i), 0, 0, 0}});
    tokens->push_back(
        SampleToken(logits, limits_.vocab_size, sampling, UniformOpenZero(words.word[0])));
    if (!on_token(tokens->back())) break;
  }
  return absl::OkStatus();
}

}  // namespace megatron
