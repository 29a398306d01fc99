#include "megatron/data/masked/t5_dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

absl::Status Check(const WordPieces& pieces, const T5DatasetOptions& options) {
  const SpecialTokens& special = pieces.special;
  MEGATRON_RETURN_IF_ERROR(
      CheckSpecialTokens("T5", pieces.vocab_size(),
                         {{special.bos, "BOS"}, {special.eos, "EOS"}, {special.pad, "padding"}}));
  if (special.sentinels.empty()) {
    return absl::InvalidArgumentError(
        "T5 needs sentinel tokens, which the tokenizer does not have; vocab_extra_ids adds them");
  }
  if (options.seq_length < 4 || options.decoder_seq_length < 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        "T5 needs a seq_length of at least 4 and a decoder_seq_length of at least 3, not ",
        options.seq_length, " and ", options.decoder_seq_length));
  }
  return absl::OkStatus();
}

// Two positions of seq_length stay free, as in Megatron.
SampleForm Form(const T5DatasetOptions& options) {
  return {"T5MaskedWordPieceDataset", options.seq_length - 2, 1};
}

}  // namespace

absl::StatusOr<std::unique_ptr<T5Dataset>> T5Dataset::Create(
    std::shared_ptr<const TokenSequences> sentences, DocumentSentences document, WordPieces pieces,
    const T5DatasetOptions& options) {
  if (pieces.special.bos < 0) pieces.special.bos = pieces.special.pad;
  MEGATRON_RETURN_IF_ERROR(Check(pieces, options));
  MEGATRON_ASSIGN_OR_RETURN(MaskedCorpus corpus,
                            MaskedCorpus::Create(std::move(sentences), document, std::move(pieces),
                                                 options, Form(options)));
  return std::unique_ptr<T5Dataset>(new T5Dataset(std::move(corpus), options));
}

absl::Status T5Dataset::Get(int64_t index, T5Sample* sample) const {
  MEGATRON_RETURN_IF_ERROR(CheckSampleIndex(index, size()));
  const SentenceSample& source = corpus_.samples[index];
  int64_t length = 0;
  for (int32_t i = 0; i < source.num_sentences; ++i)
    length += corpus_.sentences->SequenceLength(source.first_sentence + i);
  sample->truncated = length > source.target_length;
  std::vector<int32_t> text(std::min<int64_t>(length, source.target_length));
  MEGATRON_RETURN_IF_ERROR(
      ReadSentences(*corpus_.sentences, source.first_sentence, 0, absl::MakeSpan(text)));
  MEGATRON_RETURN_IF_ERROR(CheckSentenceTokens(text, corpus_.pieces.vocab_size(), index));
  // The seed wraps around at 2^32, as Megatron's does.
  NumpyRandomState random(options_.seed + static_cast<uint32_t>(index));
  const MaskedNgrams spans =
      corpus_.masker.Draw(text, corpus_.pieces, source.target_length, &random, [](int32_t) {});
  CutSpans(text, spans, sample);
  Pad(sample);
  return absl::OkStatus();
}

void T5Dataset::CutSpans(absl::Span<const int32_t> text, const MaskedNgrams& spans,
                         T5Sample* sample) const {
  sample->encoder_tokens.clear();
  sample->decoder_tokens.assign(1, corpus_.pieces.special.bos);
  auto sentinel = corpus_.pieces.special.sentinels.begin();
  auto copied = text.begin();
  for (const MaskedNgrams::Range& span : spans.ngrams) {
    const size_t size_with_span = sample->decoder_tokens.size() + 1 + (span.end - span.begin);
    if (sentinel == corpus_.pieces.special.sentinels.end() ||
        size_with_span > static_cast<size_t>(options_.decoder_seq_length)) {
      break;
    }
    sample->encoder_tokens.insert(sample->encoder_tokens.end(), copied,
                                  text.begin() + spans.positions[span.begin]);
    sample->encoder_tokens.push_back(*sentinel);
    sample->decoder_tokens.push_back(*sentinel);
    for (int32_t i = span.begin; i < span.end; ++i)
      sample->decoder_tokens.push_back(text[spans.positions[i]]);
    copied = text.begin() + spans.positions[span.end - 1] + 1;
    ++sentinel;
  }
  sample->encoder_tokens.insert(sample->encoder_tokens.end(), copied, text.end());
}

void T5Dataset::Pad(T5Sample* sample) const {
  sample->labels.assign(sample->decoder_tokens.begin() + 1, sample->decoder_tokens.end());
  sample->labels.push_back(corpus_.pieces.special.eos);
  sample->loss_mask.assign(sample->labels.size(), 1.0f);
  const int32_t decoder_length = options_.decoder_seq_length;
  PadTo(decoder_length, -1, &sample->labels);
  PadTo(decoder_length, 0.0f, &sample->loss_mask);
  const int32_t pad = corpus_.pieces.special.pad;
  sample->num_decoder_tokens = PadTo(decoder_length, pad, &sample->decoder_tokens);
  sample->num_encoder_tokens = PadTo(options_.seq_length, pad, &sample->encoder_tokens);
}

}  // namespace megatron
