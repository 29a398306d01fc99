#include "megatron/train/micro_batch_packer.h"

#include <algorithm>

#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

int64_t RoundUp(int64_t bytes) {
  return (bytes + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
}

// A micro-batch with room for the most tokens and sequences that it can have, made of tensors that
// next(dtype, count) gives.
template <typename Next>
MicroBatch LayOut(const PackerOptions& options, Next next) {
  const int64_t samples = options.layout.micro_batch_size, tokens = samples * options.seq_length;
  MicroBatch batch;
  batch.tokens_T = next(DType::kInt32, tokens);
  batch.labels_T = next(DType::kInt32, tokens);
  batch.position_T = next(DType::kInt32, tokens);
  batch.sample_position_T = next(DType::kInt32, tokens);
  batch.cu_seqlens = next(DType::kInt32, tokens + 1);
  batch.loss_weight_T = next(DType::kFloat32, tokens);
  batch.gradient_weight_T = next(DType::kFloat32, tokens);
  batch.sample_T = next(DType::kInt64, tokens);
  if (!options.classified) return batch;
  batch.token_type_T = next(DType::kInt32, tokens);
  // One sequence more than there are samples fills the micro-batch up.
  batch.sequence_label_S = next(DType::kInt32, samples + 1);
  batch.sequence_weight_S = next(DType::kFloat32, samples + 1);
  batch.sequence_gradient_weight_S = next(DType::kFloat32, samples + 1);
  return batch;
}

int64_t BatchBytes(const PackerOptions& options) {
  int64_t bytes = 0;
  LayOut(options, [&](DType dtype, int64_t count) {
    bytes += RoundUp(SizeOf(dtype) * count);
    return Tensor();
  });
  return bytes;
}

using Part = Tensor MicroBatch::*;
constexpr Part kOfTokens[] = {&MicroBatch::tokens_T,      &MicroBatch::labels_T,
                              &MicroBatch::position_T,    &MicroBatch::sample_position_T,
                              &MicroBatch::loss_weight_T, &MicroBatch::gradient_weight_T,
                              &MicroBatch::sample_T,      &MicroBatch::token_type_T};
constexpr Part kOfSequences[] = {&MicroBatch::sequence_label_S, &MicroBatch::sequence_weight_S,
                                 &MicroBatch::sequence_gradient_weight_S};

// Leaves out what is not used.
void Shorten(int64_t tokens, int64_t sequences, MicroBatch* batch) {
  for (const Part part : kOfTokens) {
    if (!(batch->*part).empty()) batch->*part = (batch->*part).Slice(0, 0, tokens);
  }
  for (const Part part : kOfSequences) {
    if (!(batch->*part).empty()) batch->*part = (batch->*part).Slice(0, 0, sequences);
  }
  batch->cu_seqlens = batch->cu_seqlens.Slice(0, 0, sequences + 1);
}

}  // namespace

MicroBatchPacker::MicroBatchPacker(const PackerOptions& options, Device device,
                                   MemoryLedger* ledger)
    : options_(options) {
  const int64_t bytes = options.max_micro_batches * BytesOfOne();
  buffer_ = Buffer(device, bytes + SizeOf(DType::kFloat32), "batches", ledger);
  token_count_ = buffer_.At(bytes, DType::kFloat32, {1});
  host_ = HostMirror(buffer_.At(0, DType::kUInt8, {bytes}), "batches");
  host_count_ = HostMirror(token_count_, "batches");
  batches_.reserve(options.max_micro_batches);
  host_batches_.reserve(options.max_micro_batches);
}

int64_t MicroBatchPacker::BytesOfOne() const {
  const int size = options_.context_parallel_size;
  if (size == 1) return BatchBytes(options_);
  const int64_t labelled = options_.classified ? options_.layout.micro_batch_size + 1 : 0;
  return BatchBytes(options_) + ContextSliceBytes(TokensOfAll(), size, labelled);
}

void MicroBatchPacker::PlaceOwnTokens() {
  if (options_.context_parallel_size == 1) return;
  for (size_t m = 0; m < batches_.size(); ++m) {
    const int64_t begin = static_cast<int64_t>(m) * BytesOfOne() + BatchBytes(options_);
    batches_[m] = PlaceContextSlice(batches_[m], Shard(), buffer_, begin);
  }
}

void MicroBatchPacker::TakeOwnTokens() {
  if (options_.context_parallel_size == 1) return;
  PlaceOwnTokens();
  for (size_t m = 0; m < batches_.size(); ++m) {
    const MicroBatch slice = OnHost(batches_[m]);
    FillContextSlice(host_batches_[m], Shard(), slice);
    host_batches_[m] = slice;
  }
}

MicroBatch MicroBatchPacker::Whole(int64_t index) const {
  int64_t offset = index * BytesOfOne();
  return LayOut(options_, [&](DType dtype, int64_t count) {
    const Tensor tensor = buffer_.At(offset, dtype, {count});
    offset += RoundUp(tensor.bytes());
    return tensor;
  });
}

MicroBatch MicroBatchPacker::OnHost(const MicroBatch& batch) const {
  MicroBatch host = batch;
  for (Tensor* tensor : {&host.cu_seqlens, &host.context.cu_seqlens, &host.context.place_CT,
                         &host.context.first_token_S}) {
    if (!tensor->empty()) *tensor = host_.Of(*tensor);
  }
  for (const Part part : kOfTokens) {
    if (!(host.*part).empty()) host.*part = host_.Of(host.*part);
  }
  for (const Part part : kOfSequences) {
    if (!(host.*part).empty()) host.*part = host_.Of(host.*part);
  }
  return host;
}

void MicroBatchPacker::PackShapes(int64_t micro_batches) {
  CHECK_LE(micro_batches, options_.max_micro_batches);
  batches_.clear();
  for (int64_t m = 0; m < micro_batches; ++m) {
    batches_.push_back(Whole(m));
    const int64_t samples = options_.layout.micro_batch_size;
    Shorten(samples * options_.seq_length,
            options_.classified && TokenMultiple() > 1 ? samples + 1 : samples, &batches_.back());
    batches_.back().max_seqlen = options_.seq_length;
    batches_.back().num_samples = options_.layout.micro_batch_size;
  }
  PlaceOwnTokens();
}

void MicroBatchPacker::Append(const GptSample& sample, int64_t ordinal, int64_t offset,
                              MicroBatch* batch, int64_t* sequences) {
  const int64_t length = static_cast<int64_t>(sample.tokens.size());
  std::copy_n(sample.tokens.begin(), length, batch->tokens_T.data<int32_t>() + offset);
  std::copy_n(sample.labels.begin(), length, batch->labels_T.data<int32_t>() + offset);
  std::copy_n(sample.positions.begin(), length, batch->position_T.data<int32_t>() + offset);
  std::copy_n(sample.loss_mask.begin(), length, batch->loss_weight_T.data<float>() + offset);
  std::fill_n(batch->sample_T.data<int64_t>() + offset, length, ordinal);
  for (int64_t i = 0; i < length; ++i)
    batch->sample_position_T.data<int32_t>()[offset + i] = static_cast<int32_t>(i);
  for (size_t d = 0; d < sample.document_starts.size(); ++d) {
    const int64_t begin = sample.document_starts[d];
    const int64_t end =
        d + 1 < sample.document_starts.size() ? sample.document_starts[d + 1] : length;
    batch->cu_seqlens.data<int32_t>()[++*sequences] = static_cast<int32_t>(offset + end);
    batch->max_seqlen = std::max(batch->max_seqlen, end - begin);
  }
  if (!options_.classified) return;
  std::copy_n(sample.types.begin(), length, batch->token_type_T.data<int32_t>() + offset);
  batch->sequence_label_S.data<int32_t>()[*sequences - 1] = sample.sequence_class;
  batch->sequence_weight_S.data<float>()[*sequences - 1] = 1;
}

int64_t MicroBatchPacker::FillUp(int64_t tokens, MicroBatch* batch, int64_t* sequences) {
  const int64_t multiple = TokenMultiple();
  const int64_t missing = (multiple - tokens % multiple) % multiple;
  if (missing == 0) return tokens;
  GptSample filler;
  filler.tokens.assign(static_cast<size_t>(missing), 0);
  filler.labels.assign(static_cast<size_t>(missing), -1);
  filler.loss_mask.assign(static_cast<size_t>(missing), 0);
  filler.positions.assign(static_cast<size_t>(missing), 0);
  filler.types.assign(static_cast<size_t>(missing), 0);
  filler.document_starts = {0};
  Append(filler, /*ordinal=*/0, tokens, batch, sequences);
  batch->sequence_weight_S.data<float>()[*sequences - 1] = 0;
  return tokens + missing;
}

// Training and evaluation have a source each, and each source a reader that knows where it is.
SamplePrefetcher& MicroBatchPacker::ReaderOf(const GptSampleSource& source) {
  for (const auto& [known, reader] : readers_) {
    if (known == &source) return *reader;
  }
  PrefetchOptions options;
  options.layout = options_.layout;
  options.num_workers = options_.num_workers;
  options.capacity = (options_.num_workers + 1) * options_.layout.micro_batch_size;
  readers_.emplace_back(&source, std::make_unique<SamplePrefetcher>(&source, options));
  return *readers_.back().second;
}

absl::Status MicroBatchPacker::PackOne(SamplePrefetcher& reader, const SampleRange& range,
                                       MicroBatch* batch) {
  int64_t sequences = 0, tokens = 0;
  batch->max_seqlen = 0;
  batch->cu_seqlens.data<int32_t>()[0] = 0;
  for (int64_t i = 0; i < range.count; ++i) {
    MEGATRON_RETURN_IF_ERROR(reader.Get(range.begin + i, &sample_),
                             _ << "while reading training sample " << range.begin + i);
    const int64_t length = static_cast<int64_t>(sample_.tokens.size());
    CHECK(length == options_.seq_length || (options_.classified && length < options_.seq_length))
        << length;
    Append(sample_, range.begin + i, tokens, batch, &sequences);
    tokens += length;
  }
  if (options_.classified) tokens = FillUp(tokens, batch, &sequences);
  Shorten(tokens, sequences, batch);
  return absl::OkStatus();
}

// Each micro-batch has the same number of samples: their mean is that of micro-batches' means.
void MicroBatchPacker::WeighSequences(const Step& step, MicroBatch* batch) const {
  const int64_t samples =
      step.micro_batches * options_.layout.micro_batch_size * options_.layout.data_parallel_size;
  const float scale = step.loss_scale / static_cast<float>(samples);
  for (int64_t s = 0; s < batch->num_sequences(); ++s) {
    batch->sequence_gradient_weight_S.data<float>()[s] =
        batch->sequence_weight_S.data<float>()[s] * scale;
  }
}

absl::Status MicroBatchPacker::Pack(const GptSampleSource& source, const Step& step,
                                    const ProcessGroup& data_group, const Stream& stream) {
  CHECK_LE(step.micro_batches, options_.max_micro_batches);
  batches_.clear();
  host_batches_.clear();
  SamplePrefetcher& reader = ReaderOf(source);
  for (int64_t m = 0; m < step.micro_batches; ++m) {
    batches_.push_back(Whole(m));
    host_batches_.push_back(OnHost(batches_.back()));
    MicroBatch &batch = batches_.back(), &host = host_batches_.back();
    MEGATRON_RETURN_IF_ERROR(
        PackOne(reader, MicroBatchSamples(options_.layout, step.consumed_samples, m), &host));
    Shorten(host.num_tokens(), host.num_sequences(), &batch);
    batch.max_seqlen = host.max_seqlen;
    batch.num_samples = options_.layout.micro_batch_size;
    batch.sample_weight =
        step.loss_scale / static_cast<float>(step.micro_batches * batch.num_samples *
                                             options_.layout.data_parallel_size);
  }
  auto tokens_of = [](const MicroBatch& batch) {
    const float* weight = batch.loss_weight_T.data<float>();
    double sum = 0;
    for (int64_t t = 0; t < batch.num_tokens(); ++t) sum += weight[t];
    return sum;
  };
  double tokens = 0;
  for (const MicroBatch& batch : host_batches_) tokens += tokens_of(batch);
  // Counts below 2^24 are exact in fp32, and a global batch of more tokens loses less than its last
  // digit.
  float& token_count = host_count_.host().data<float>()[0];
  token_count = static_cast<float>(tokens);
  host_count_.Send(stream);
  data_group.AllReduce(token_count_, ReduceOp::kSum, stream);
  host_count_.Fetch(stream);
  const double replicas = static_cast<double>(step.micro_batches * data_group.size());
  for (MicroBatch& batch : host_batches_) {
    const double denominator = options_.per_token_loss ? std::max(1.0, double{token_count})
                                                       : std::max(1.0, tokens_of(batch)) * replicas;
    const float scale = static_cast<float>(step.loss_scale / denominator);
    for (int64_t t = 0; t < batch.num_tokens(); ++t) {
      batch.gradient_weight_T.data<float>()[t] = batch.loss_weight_T.data<float>()[t] * scale;
    }
    if (options_.classified) WeighSequences(step, &batch);
  }
  TakeOwnTokens();
  host_.Send(stream);
  return absl::OkStatus();
}

}  // namespace megatron
