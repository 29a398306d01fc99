#include "megatron/data/masked/t5_source.h"

#include <numeric>

#include "megatron/base/status_macros.h"

namespace megatron {

absl::Status T5Source::Get(int64_t index, GptSample* sample) const {
  T5Sample padded;
  MEGATRON_RETURN_IF_ERROR(dataset_->Get(index, &padded));
  const auto length = padded.num_decoder_tokens;
  sample->tokens.assign(padded.decoder_tokens.begin(), padded.decoder_tokens.begin() + length);
  sample->labels.assign(padded.labels.begin(), padded.labels.begin() + length);
  sample->loss_mask.assign(padded.loss_mask.begin(), padded.loss_mask.begin() + length);
  sample->positions.resize(static_cast<size_t>(length));
  std::iota(sample->positions.begin(), sample->positions.end(), 0);
  sample->document_starts.assign(1, 0);
  sample->encoder_tokens.assign(padded.encoder_tokens.begin(),
                                padded.encoder_tokens.begin() + padded.num_encoder_tokens);
  return absl::OkStatus();
}

}  // namespace megatron
