#include "megatron/train/batches/micro_batch_room.h"

#include "megatron/base/round_up.h"

namespace megatron {
namespace {

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, Buffer::kAlignment); }

// The tensors with one value for each token, each sequence, each token of the encoder.
constexpr Tensor MicroBatch::*kOfTokens[] = {
    &MicroBatch::tokens_T,          &MicroBatch::labels_T,      &MicroBatch::position_T,
    &MicroBatch::sample_position_T, &MicroBatch::loss_weight_T, &MicroBatch::gradient_weight_T,
    &MicroBatch::sample_T,          &MicroBatch::token_type_T,  &MicroBatch::sample_number_T};
constexpr Tensor MicroBatch::*kOfSequences[] = {
    &MicroBatch::sequence_label_S,           &MicroBatch::sequence_weight_S,
    &MicroBatch::sequence_gradient_weight_S, &MicroBatch::sequence_sample_S,
    &MicroBatch::sequence_position_S,        &MicroBatch::sample_share_S};
constexpr Tensor EncoderBatch::*kOfEncoderTokens[] = {
    &EncoderBatch::tokens_T, &EncoderBatch::position_T, &EncoderBatch::sample_T,
    &EncoderBatch::sample_position_T};

// Returns a micro-batch made of the tensors that next(dtype, count) gives.
template <typename Next>
MicroBatch LayOut(const MicroBatchRoom& room, Next next) {
  MicroBatch batch;
  batch.tokens_T = next(DType::kInt32, room.tokens);
  batch.labels_T = next(DType::kInt32, room.tokens);
  batch.position_T = next(DType::kInt32, room.tokens);
  batch.sample_position_T = next(DType::kInt32, room.tokens);
  batch.cu_seqlens = next(DType::kInt32, room.sequences + 1);
  batch.loss_weight_T = next(DType::kFloat32, room.tokens);
  batch.gradient_weight_T = next(DType::kFloat32, room.tokens);
  batch.sample_T = next(DType::kInt64, room.tokens);
  if (room.has_classes) {
    batch.token_type_T = next(DType::kInt32, room.tokens);
    batch.sequence_label_S = next(DType::kInt32, room.sequences);
    batch.sequence_weight_S = next(DType::kFloat32, room.sequences);
    batch.sequence_gradient_weight_S = next(DType::kFloat32, room.sequences);
    batch.sequence_sample_S = next(DType::kInt64, room.sequences);
    batch.sequence_position_S = next(DType::kInt32, room.sequences);
  }
  if (room.has_sample_numbers) {
    batch.sample_number_T = next(DType::kInt32, room.tokens);
    batch.sample_share_S = next(DType::kFloat32, room.sequences);
  }
  if (room.encoder_tokens > 0) {
    batch.encoder.tokens_T = next(DType::kInt32, room.encoder_tokens);
    batch.encoder.position_T = next(DType::kInt32, room.encoder_tokens);
    batch.encoder.sample_position_T = next(DType::kInt32, room.encoder_tokens);
    batch.encoder.cu_seqlens = next(DType::kInt32, room.sequences + 1);
    batch.encoder.sample_T = next(DType::kInt64, room.encoder_tokens);
    batch.spans.span_T = next(DType::kInt32, room.tokens);
    batch.spans.missing_R = next(DType::kFloat32, room.tokens);
    batch.spans.weight_R = next(DType::kFloat32, room.tokens);
  }
  const auto of_depths = [&](DType dtype) {
    const Tensor all = next(dtype, room.mtp_depths * room.tokens);
    return all.empty() ? all : all.View({room.mtp_depths, room.tokens});
  };
  if (room.mtp_depths > 0) {
    batch.mtp = {of_depths(DType::kInt32), of_depths(DType::kInt32), of_depths(DType::kFloat32),
                 of_depths(DType::kFloat32)};
  }
  return batch;
}

void Cut(int64_t count, Tensor* tensor) {
  if (!tensor->empty()) *tensor = tensor->Slice(0, 0, count);
}

}  // namespace

MicroBatchSize SizeOf(const MicroBatch& batch) {
  return {batch.num_tokens(), batch.num_sequences(), batch.encoder.num_tokens(),
          batch.spans.num_spans()};
}

MicroBatch PlaceMicroBatch(const MicroBatchRoom& room, const Buffer& memory, int64_t offset) {
  return LayOut(room, [&](DType dtype, int64_t count) {
    const Tensor tensor = memory.At(offset, dtype, {count});
    offset += Aligned(tensor.bytes());
    return tensor;
  });
}

int64_t MicroBatchBytes(const MicroBatchRoom& room) {
  int64_t bytes = 0;
  LayOut(room, [&](DType dtype, int64_t count) {
    bytes += Aligned(SizeOf(dtype) * count);
    return Tensor();
  });
  return bytes;
}

void Shorten(const MicroBatchSize& size, MicroBatch* batch) {
  for (const auto part : kOfTokens) Cut(size.tokens, &(batch->*part));
  for (const auto part : kOfSequences) Cut(size.sequences, &(batch->*part));
  for (const auto part : kOfEncoderTokens) Cut(size.encoder_tokens, &(batch->encoder.*part));
  Cut(size.sequences + 1, &batch->cu_seqlens);
  Cut(size.sequences + 1, &batch->encoder.cu_seqlens);
  Cut(size.tokens, &batch->spans.span_T);
  Cut(size.spans, &batch->spans.missing_R);
  Cut(size.spans, &batch->spans.weight_R);
  for (const auto part : kMtpFields) {
    Tensor* const x_DT = &(batch->mtp.*part);
    if (!x_DT->empty()) *x_DT = x_DT->Slice(1, 0, size.tokens);
  }
}

void ForEachTensor(MicroBatch* batch, absl::FunctionRef<void(Tensor*)> fn) {
  const auto visit = [&](Tensor* tensor) {
    if (!tensor->empty()) fn(tensor);
  };
  for (const auto part : kOfTokens) visit(&(batch->*part));
  for (const auto part : kOfSequences) visit(&(batch->*part));
  for (const auto part : kOfEncoderTokens) visit(&(batch->encoder.*part));
  for (const auto part : kMtpFields) visit(&(batch->mtp.*part));
  for (Tensor* tensor :
       {&batch->cu_seqlens, &batch->encoder.cu_seqlens, &batch->context.cu_seqlens,
        &batch->context.place_CT, &batch->context.sample_T, &batch->context.sample_position_T,
        &batch->context.first_token_S, &batch->encoder.context.cu_seqlens,
        &batch->encoder.context.place_CT, &batch->encoder.context.sample_T,
        &batch->encoder.context.sample_position_T, &batch->spans.span_T, &batch->spans.missing_R,
        &batch->spans.weight_R}) {
    visit(tensor);
  }
}

}  // namespace megatron
