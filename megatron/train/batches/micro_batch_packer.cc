#include "megatron/train/batches/micro_batch_packer.h"

#include <algorithm>
#include <numeric>

#include "megatron/base/status_macros.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {

MicroBatchPacker::MicroBatchPacker(const PackerOptions& options, Device device,
                                   MemoryLedger* ledger)
    : options_(options) {
  const int64_t bytes = options.max_micro_batches * BytesOfOne();
  buffer_ = Buffer(device, bytes, "batches", ledger);
  const Tensor all = buffer_.At(0, DType::kUInt8, {bytes});
  staging_[0].host = HostMirror(all, "batches");
  if (device.type == DeviceType::kCuda) staging_[1].host = HostMirror(all, "batches");
  batches_.reserve(options.max_micro_batches);
}

// A document may begin at every token of a sample. Samples of varied lengths have none, but one
// sequence more than there are samples fills the micro-batch up.
MicroBatchRoom MicroBatchPacker::Room() const {
  const MicroBatchSize largest = LargestSize();
  MicroBatchRoom room;
  room.tokens = largest.tokens;
  room.sequences = options_.lengths_vary() ? largest.sequences : largest.tokens;
  room.has_classes = options_.has_classes;
  room.has_sample_numbers = options_.has_sample_numbers && options_.lengths_vary();
  room.encoder_tokens = largest.encoder_tokens;
  room.mtp_depths = options_.mtp_depths;
  return room;
}

// A sequence that fills up one side of a model with an encoder has tokens on the other side, too:
// if all samples are as long as they may be, there are more tokens than theirs.
MicroBatchSize MicroBatchPacker::LargestSize() const {
  const int64_t samples = options_.layout.micro_batch_size;
  MicroBatchSize size = {samples * options_.seq_length, samples * options_.sequences_per_sample,
                         samples * options_.encoder_seq_length};
  if (options_.encoder_seq_length > 0) size.spans = size.tokens;
  const int64_t multiple = TokenMultiple();
  if (!options_.lengths_vary() || multiple == 1) return size;
  ++size.sequences;
  if (options_.encoder_seq_length > 0) {
    for (int64_t* tokens : {&size.tokens, &size.encoder_tokens})
      *tokens = (*tokens / multiple + 1) * multiple;
  }
  return size;
}

int64_t MicroBatchPacker::BytesOfOne() const {
  if (options_.context_parallel_size == 1) return MicroBatchBytes(Room());
  const MicroBatchSize largest = LargestSize();
  return MicroBatchBytes(Room()) +
         ContextSliceBytes({largest.tokens, options_.has_classes ? largest.sequences : 0,
                            largest.encoder_tokens, options_.mtp_depths},
                           Shard(options_.seq_length));
}

void MicroBatchPacker::PlaceContextShard(int64_t seq_length) {
  if (options_.context_parallel_size == 1) return;
  for (size_t m = 0; m < batches_.size(); ++m) {
    const int64_t begin = static_cast<int64_t>(m) * BytesOfOne() + MicroBatchBytes(Room());
    batches_[m] = PlaceContextSlice(batches_[m], Shard(seq_length), buffer_, begin);
  }
}

void MicroBatchPacker::FillContextShard(Staging* staging) {
  if (options_.context_parallel_size == 1) return;
  PlaceContextShard(staging->seq_length);
  for (size_t m = 0; m < batches_.size(); ++m) {
    FillContextSlice(staging->batches[m], Shard(staging->seq_length),
                     OnHost(staging->host, batches_[m]));
  }
}

MicroBatch MicroBatchPacker::Whole(int64_t index) const {
  return PlaceMicroBatch(Room(), buffer_, index * BytesOfOne());
}

MicroBatch MicroBatchPacker::OnHost(const HostMirror& host, const MicroBatch& batch) {
  MicroBatch mirrored = batch;
  ForEachTensor(&mirrored, [&](Tensor* tensor) { *tensor = host.Of(*tensor); });
  return mirrored;
}

void MicroBatchPacker::PackShapes(int64_t micro_batches) {
  CHECK_LE(micro_batches, options_.max_micro_batches);
  batches_.clear();
  for (int64_t m = 0; m < micro_batches; ++m) {
    batches_.push_back(Whole(m));
    MicroBatch& batch = batches_.back();
    Shorten(LargestSize(), &batch);
    batch.max_seqlen = options_.seq_length;
    batch.encoder.max_seqlen = options_.encoder_seq_length;
    batch.num_samples = options_.layout.micro_batch_size;
  }
  PlaceContextShard(options_.seq_length);
}

void MicroBatchPacker::Append(const Sample& sample, int64_t ordinal, MicroBatchSize* used,
                              MicroBatch* batch) {
  const int64_t length = static_cast<int64_t>(sample.tokens.size()), offset = used->tokens;
  std::copy_n(sample.tokens.begin(), length, batch->tokens_T.data<int32_t>() + offset);
  std::copy_n(sample.labels.begin(), length, batch->labels_T.data<int32_t>() + offset);
  std::copy_n(sample.positions.begin(), length, batch->position_T.data<int32_t>() + offset);
  std::copy_n(sample.loss_mask.begin(), length, batch->loss_weight_T.data<float>() + offset);
  std::fill_n(batch->sample_T.data<int64_t>() + offset, length, ordinal);
  for (int64_t i = 0; i < length; ++i)
    batch->sample_position_T.data<int32_t>()[offset + i] = static_cast<int32_t>(i);
  if (options_.has_classes) AppendClasses(sample, ordinal, *used, batch);
  if (!batch->sample_number_T.empty()) AppendNumbers(sample, *used, batch);
  if (options_.encoder_seq_length > 0) {
    AppendEncoder(sample, ordinal, used, batch);
    AppendSpans(sample, used, batch);
  }
  for (size_t d = 0; d < sample.document_starts.size(); ++d) {
    const int64_t begin = sample.document_starts[d];
    const int64_t end =
        d + 1 < sample.document_starts.size() ? sample.document_starts[d + 1] : length;
    batch->cu_seqlens.data<int32_t>()[++used->sequences] = static_cast<int32_t>(offset + end);
    batch->max_seqlen = std::max(batch->max_seqlen, end - begin);
  }
  used->tokens += length;
}

// A sample of several sequences has one label. What fills a micro-batch up stands behind all
// samples.
void MicroBatchPacker::AppendClasses(const Sample& sample, int64_t ordinal,
                                     const MicroBatchSize& used, MicroBatch* batch) {
  std::copy(sample.types.begin(), sample.types.end(),
            batch->token_type_T.data<int32_t>() + used.tokens);
  const int64_t label = used.sequences / options_.sequences_per_sample;
  batch->sequence_label_S.data<int32_t>()[label] = sample.sequence_class;
  batch->sequence_weight_S.data<float>()[label] = sample.sequence_weight;
  for (size_t d = 0; d < sample.document_starts.size(); ++d) {
    const int64_t sequence = used.sequences + static_cast<int64_t>(d);
    batch->sequence_sample_S.data<int64_t>()[sequence] = ordinal;
    batch->sequence_position_S.data<int32_t>()[sequence] = sample.document_starts[d];
  }
}

// One sequence more than there are samples fills the micro-batch up.
void MicroBatchPacker::AppendNumbers(const Sample& sample, const MicroBatchSize& used,
                                     MicroBatch* batch) {
  const int64_t length = static_cast<int64_t>(sample.tokens.size());
  const bool fills_up = used.sequences == options_.layout.micro_batch_size;
  std::fill_n(batch->sample_number_T.data<int32_t>() + used.tokens, length,
              fills_up ? -1 : static_cast<int32_t>(used.sequences));
  batch->sample_share_S.data<float>()[used.sequences] = 1.0f / static_cast<float>(length);
}

void MicroBatchPacker::AppendEncoder(const Sample& sample, int64_t ordinal, MicroBatchSize* used,
                                     MicroBatch* batch) {
  const EncoderBatch& encoder = batch->encoder;
  const int64_t length = static_cast<int64_t>(sample.encoder_tokens.size());
  const int64_t offset = used->encoder_tokens;
  std::copy_n(sample.encoder_tokens.begin(), length, encoder.tokens_T.data<int32_t>() + offset);
  std::fill_n(encoder.sample_T.data<int64_t>() + offset, length, ordinal);
  for (const Tensor* places : {&encoder.position_T, &encoder.sample_position_T})
    std::iota(places->data<int32_t>() + offset, places->data<int32_t>() + offset + length, 0);
  used->encoder_tokens += length;
  encoder.cu_seqlens.data<int32_t>()[used->sequences + 1] =
      static_cast<int32_t>(used->encoder_tokens);
  batch->encoder.max_seqlen = std::max(batch->encoder.max_seqlen, length);
}

void MicroBatchPacker::AppendSpans(const Sample& sample, MicroBatchSize* used, MicroBatch* batch) {
  int32_t* const span = batch->spans.span_T.data<int32_t>() + used->tokens;
  float* const missing = batch->spans.missing_R.data<float>() + used->spans;
  float* const weight = batch->spans.weight_R.data<float>() + used->spans;
  const auto first = static_cast<int32_t>(used->spans);
  for (size_t t = 0; t < sample.spans.size(); ++t) {
    const int32_t number = sample.spans[t];
    span[t] = number < 0 ? -1 : first + number;
    if (number < 0) continue;
    if (first + number == used->spans) {
      missing[number] = weight[number] = 1;
      ++used->spans;
    }
    --missing[number];
  }
}

void MicroBatchPacker::FillUp(MicroBatchSize* used, MicroBatch* batch) {
  const int64_t multiple = TokenMultiple();
  const bool has_encoder = options_.encoder_seq_length > 0;
  int64_t missing = (multiple - used->tokens % multiple) % multiple;
  int64_t encoder_missing = (multiple - used->encoder_tokens % multiple) % multiple;
  if (missing == 0 && encoder_missing == 0) return;
  // The filling sequence needs tokens on both sides, so that it has something to attend to.
  if (missing == 0) missing = multiple;
  if (has_encoder && encoder_missing == 0) encoder_missing = multiple;
  AppendFiller(missing, encoder_missing, /*sequences=*/1, used, batch);
}

void MicroBatchPacker::AppendFiller(int64_t tokens, int64_t encoder_tokens, int64_t sequences,
                                    MicroBatchSize* used, MicroBatch* batch) {
  Sample filler;
  filler.tokens.assign(static_cast<size_t>(tokens), 0);
  filler.labels.assign(static_cast<size_t>(tokens), -1);
  filler.loss_mask.assign(static_cast<size_t>(tokens), 0);
  filler.positions.assign(static_cast<size_t>(tokens), 0);
  filler.types.assign(static_cast<size_t>(tokens), 0);
  filler.encoder_tokens.assign(static_cast<size_t>(encoder_tokens), 0);
  filler.spans.assign(static_cast<size_t>(tokens), -1);
  filler.sequence_weight = 0;
  for (int64_t s = 0; s < sequences; ++s) filler.document_starts.push_back(static_cast<int32_t>(s));
  Append(filler, /*ordinal=*/0, used, batch);
}

namespace {

// Drops what lies behind the first `length` tokens. Only samples of equal lengths are cut.
void Truncate(int64_t length, Sample* sample) {
  const auto size = static_cast<size_t>(length);
  sample->tokens.resize(size);
  sample->labels.resize(size);
  sample->loss_mask.resize(size);
  sample->positions.resize(size);
  std::vector<int32_t>& starts = sample->document_starts;
  starts.erase(std::lower_bound(starts.begin(), starts.end(), static_cast<int32_t>(length)),
               starts.end());
}

// Samples that are not there or hold what they may not are no better when they are read again.
absl::Status WithCodeOfData(const absl::Status& status) {
  if (status.ok()) return status;
  const bool is_of_samples =
      absl::IsOutOfRange(status) || absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
  return WithExitCode(status, is_of_samples ? kExitData : kExitIo);
}

}  // namespace

// Training and evaluation have a source each, and each source a reader that knows where it is.
SamplePrefetcher& MicroBatchPacker::ReaderOf(const SampleSource& source) {
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

void MicroBatchPacker::FillMtp(MicroBatch* batch) {
  const int32_t* const begins = batch->cu_seqlens.data<int32_t>();
  for (int64_t depth = 0; depth < batch->mtp.depths(); ++depth) {
    const MicroBatch ahead = batch->AtDepth(depth);
    for (int64_t s = 0; s < batch->num_sequences(); ++s) {
      for (int64_t t = begins[s]; t < begins[s + 1]; ++t) {
        const int64_t from = t + depth + 1;
        const bool is_there = from < begins[s + 1];
        ahead.tokens_T.data<int32_t>()[t] = is_there ? batch->tokens_T.data<int32_t>()[from] : 0;
        ahead.labels_T.data<int32_t>()[t] = is_there ? batch->labels_T.data<int32_t>()[from] : -1;
        ahead.loss_weight_T.data<float>()[t] =
            is_there ? batch->loss_weight_T.data<float>()[from] : 0;
      }
    }
  }
}

absl::Status MicroBatchPacker::PackOne(SamplePrefetcher& reader, const SampleRange& range,
                                       int64_t seq_length, MicroBatch* batch) {
  MicroBatchSize used;
  batch->cu_seqlens.data<int32_t>()[0] = 0;
  if (options_.encoder_seq_length > 0) batch->encoder.cu_seqlens.data<int32_t>()[0] = 0;
  for (int64_t i = 0; i < range.count; ++i) {
    MEGATRON_RETURN_IF_ERROR(WithCodeOfData(reader.Get(range.begin + i, &sample_)),
                             _ << "while reading training sample " << range.begin + i);
    const int64_t length = static_cast<int64_t>(sample_.tokens.size());
    CHECK(length == options_.seq_length ||
          (options_.lengths_vary() && length < options_.seq_length))
        << length;
    CHECK_LE(static_cast<int64_t>(sample_.encoder_tokens.size()), options_.encoder_seq_length);
    if (seq_length < options_.seq_length) Truncate(seq_length, &sample_);
    Append(sample_, range.begin + i, &used, batch);
  }
  const bool vary = options_.lengths_vary();
  for (int64_t i = range.count; i < options_.layout.micro_batch_size; ++i) {
    const int64_t sequences = options_.sequences_per_sample;
    AppendFiller(vary ? sequences : seq_length, options_.encoder_seq_length > 0 ? 1 : 0, sequences,
                 &used, batch);
  }
  if (vary) FillUp(&used, batch);
  Shorten(used, batch);
  FillMtp(batch);
  return absl::OkStatus();
}

// Each micro-batch has the same number of samples: their mean is that of micro-batches' means.
void MicroBatchPacker::WeighSequences(const Step& step, int data_ranks, MicroBatch* batch) const {
  const float scale = step.loss_scale / static_cast<float>(SamplesOf(step, data_ranks));
  for (int64_t s = 0; s < batch->num_sequences(); ++s) {
    batch->sequence_gradient_weight_S.data<float>()[s] =
        batch->sequence_weight_S.data<float>()[s] * scale;
  }
}

MicroBatchPacker::Staging* MicroBatchPacker::Holding(const SampleSource& source, const Step& step) {
  for (Staging& staging : staging_) {
    if (staging.source == &source && staging.consumed_samples == step.consumed_samples &&
        staging.seq_length == LengthIn(step) &&
        static_cast<int64_t>(staging.batches.size()) == step.micro_batches)
      return &staging;
  }
  return nullptr;
}

// Returns a staging whose step was not read ahead, rather than the one that was sent last.
MicroBatchPacker::Staging* MicroBatchPacker::Free() {
  if (buffer_.device().type != DeviceType::kCuda) return &staging_[0];
  Staging* const other = &staging_[1 - current_];
  return other->source == nullptr ? other : &staging_[current_];
}

absl::Status MicroBatchPacker::Read(const SampleSource& source, const Step& step,
                                    Staging* staging) {
  staging->host.Finish();
  staging->source = nullptr;
  staging->batches.clear();
  staging->seq_length = LengthIn(step);
  CHECK_LE(staging->seq_length, options_.seq_length);
  CHECK(staging->seq_length == options_.seq_length || !options_.lengths_vary());
  SamplePrefetcher& reader = ReaderOf(source);
  for (int64_t m = 0; m < step.micro_batches; ++m) {
    staging->batches.push_back(OnHost(staging->host, Whole(m)));
    SampleRange range = MicroBatchSamples(options_.layout, step.consumed_samples, m);
    if (step.samples > 0) {
      const int64_t left = step.consumed_samples + step.samples - range.begin;
      range.count = std::clamp<int64_t>(left, 0, range.count);
    }
    MEGATRON_RETURN_IF_ERROR(PackOne(reader, range, staging->seq_length, &staging->batches.back()));
  }
  staging->source = &source;
  staging->consumed_samples = step.consumed_samples;
  return absl::OkStatus();
}

void MicroBatchPacker::ReadAhead(const SampleSource& source, const Step& next) {
  CHECK_LE(next.micro_batches, options_.max_micro_batches);
  const int64_t samples = SamplesOf(next, static_cast<int>(options_.layout.data_parallel_size));
  if (buffer_.device().type != DeviceType::kCuda || Holding(source, next) != nullptr ||
      next.consumed_samples + samples > source.size())
    return;
  Read(source, next, &staging_[1 - current_]).IgnoreError();
}

void MicroBatchPacker::ReleaseSources() {
  readers_.clear();
  for (Staging& staging : staging_) staging.source = nullptr;
}

void MicroBatchPacker::Place(const Step& step, int data_ranks, const Staging& staging) {
  batches_.clear();
  for (const MicroBatch& host : staging.batches) {
    batches_.push_back(Whole(static_cast<int64_t>(batches_.size())));
    MicroBatch& batch = batches_.back();
    Shorten(SizeOf(host), &batch);
    batch.max_seqlen = host.max_seqlen;
    batch.encoder.max_seqlen = host.encoder.max_seqlen;
    batch.num_samples = options_.layout.micro_batch_size;
    batch.sample_weight = step.loss_scale / static_cast<float>(SamplesOf(step, data_ranks));
  }
}

namespace {

double TokensOf(const Tensor& loss_weight_T) {
  const float* weight = loss_weight_T.data<float>();
  double sum = 0;
  for (int64_t t = 0; t < loss_weight_T.numel(); ++t) sum += weight[t];
  return sum;
}

}  // namespace

// Counts below 2^24 are exact in fp32, and a larger one loses less than its last digit. Ranks add
// up on the host, whatever they compute on.
MicroBatchPacker::TokenCounts MicroBatchPacker::CountTokens(const Staging& staging,
                                                            const ProcessGroup& data_group,
                                                            const Stream& stream) {
  std::array<double, 1 + kMostMtpDepths> tokens = {};
  for (const MicroBatch& batch : staging.batches) {
    tokens[0] += TokensOf(batch.loss_weight_T);
    for (int64_t depth = 0; depth < options_.mtp_depths; ++depth)
      tokens[1 + depth] += TokensOf(batch.mtp.loss_weight_DT.Select(0, depth));
  }
  TokenCounts counts;
  std::transform(tokens.begin(), tokens.end(), counts.begin(),
                 [](double count) { return static_cast<float>(count); });
  const bool on_host = stream.device().type == DeviceType::kCpu;
  data_group.AllReduce(Tensor(counts.data(), DType::kFloat32, {1 + options_.mtp_depths}),
                       ReduceOp::kSum, on_host ? stream : Stream::Inline());
  return counts;
}

void MicroBatchPacker::Weigh(const Step& step, const TokenCounts& all_tokens, int data_ranks,
                             Staging* staging) const {
  const double replicas = static_cast<double>(step.micro_batches * data_ranks);
  const auto weigh = [&](const Tensor& loss_weight_T, float all, double factor,
                         const Tensor& gradient_weight_T) {
    const double counted = options_.per_token_loss ? double{all} : TokensOf(loss_weight_T);
    const double denominator = options_.per_token_loss ? counted : counted * replicas;
    const float scale =
        counted == 0 ? 0 : static_cast<float>(factor * step.loss_scale / denominator);
    for (int64_t t = 0; t < loss_weight_T.numel(); ++t)
      gradient_weight_T.data<float>()[t] = loss_weight_T.data<float>()[t] * scale;
  };
  for (MicroBatch& batch : staging->batches) {
    weigh(batch.loss_weight_T, all_tokens[0], 1, batch.gradient_weight_T);
    for (int64_t depth = 0; depth < options_.mtp_depths; ++depth) {
      weigh(batch.mtp.loss_weight_DT.Select(0, depth), all_tokens[1 + depth],
            options_.mtp_loss_factor, batch.mtp.gradient_weight_DT.Select(0, depth));
    }
    if (options_.has_classes) WeighSequences(step, data_ranks, &batch);
  }
}

absl::Status MicroBatchPacker::Pack(const SampleSource& source, const Step& step,
                                    const ProcessGroup& data_group, const Stream& stream) {
  CHECK_LE(step.micro_batches, options_.max_micro_batches);
  Staging* staging = Holding(source, step);
  if (staging == nullptr) {
    staging = Free();
    MEGATRON_RETURN_IF_ERROR(Read(source, step, staging));
  }
  staging->source = nullptr;
  current_ = static_cast<int>(staging - staging_);
  Place(step, data_group.size(), *staging);
  Weigh(step, CountTokens(*staging, data_group, stream), data_group.size(), staging);
  FillContextShard(staging);
  staging->host.StartSend(stream);
  return absl::OkStatus();
}

}  // namespace megatron
