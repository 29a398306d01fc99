#include "megatron/data/masked/bert_dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/masked/mock_sentences.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

constexpr char kClass[] = "BERTMaskedWordPieceDataset";

absl::Status Check(const WordPieces& pieces) {
  const SpecialTokens& special = pieces.special;
  return CheckSpecialTokens("BERT", pieces.vocab_size(),
                            {{special.cls, "[CLS]"},
                             {special.sep, "[SEP]"},
                             {special.mask, "[MASK]"},
                             {special.pad, "padding"}});
}

SentenceSampleOptions SampleOptions(const BertDatasetOptions& options) {
  SentenceSampleOptions result;
  result.documents = options.documents;
  result.num_samples = options.num_samples;
  result.max_length = options.seq_length - 3;  // one [CLS] and two [SEP]
  result.short_sequence_probability = options.short_sequence_probability;
  result.min_sentences = options.classification_head ? 2 : 1;
  result.seed = options.seed;
  return result;
}

// Tokens [begin, end) of a sample's text.
struct Piece {
  int64_t begin;
  int64_t end;

  int64_t size() const { return end - begin; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<BertDataset>> BertDataset::Create(
    std::shared_ptr<const TokenSequences> sentences, DocumentSentences document, WordPieces pieces,
    const BertDatasetOptions& options) {
  MEGATRON_RETURN_IF_ERROR(Check(pieces));
  if (options.seq_length < 5) {
    return absl::InvalidArgumentError(
        absl::StrCat("BERT needs a seq_length of at least 5, not ", options.seq_length));
  }
  MEGATRON_ASSIGN_OR_RETURN(WordMasker masker, WordMasker::Create(options.masking));
  MEGATRON_ASSIGN_OR_RETURN(
      std::vector<SentenceSample> samples,
      LoadOrBuildSentenceSamples(kClass, options.cache, SampleOptions(options), document,
                                 [&](int64_t i) { return sentences->SequenceLength(i); }));
  return std::unique_ptr<BertDataset>(new BertDataset(
      std::move(sentences), std::move(pieces), options, std::move(masker), std::move(samples)));
}

BertDataset::BertDataset(std::shared_ptr<const TokenSequences> sentences, WordPieces pieces,
                         const BertDatasetOptions& options, WordMasker masker,
                         std::vector<SentenceSample> samples)
    : sentences_(std::move(sentences)),
      pieces_(std::move(pieces)),
      options_(options),
      masker_(std::move(masker)),
      samples_(std::move(samples)) {}

absl::Status BertDataset::Get(int64_t index, BertSample* sample) const {
  MEGATRON_RETURN_IF_ERROR(CheckSampleIndex(index, size()));
  const SentenceSample& source = samples_[index];
  // Wraps around at 2^32, as Megatron's does.
  NumpyRandomState random(options_.seed + static_cast<uint32_t>(index));
  int32_t pivot = source.num_sentences;
  sample->is_random = false;
  if (options_.classification_head) {
    pivot = source.num_sentences < 3
                ? 1
                : static_cast<int32_t>(random.RandInt(1, source.num_sentences));
    sample->is_random = random.RandomSample() < 0.5;
  }
  Piece a = {0, 0};
  for (int32_t i = 0; i < pivot; ++i)
    a.end += sentences_->SequenceLength(source.first_sentence + i);
  Piece b = {a.end, a.end};
  for (int32_t i = pivot; i < source.num_sentences; ++i)
    b.end += sentences_->SequenceLength(source.first_sentence + i);
  if (sample->is_random) std::swap(a, b);
  sample->truncated = a.size() + b.size() > source.target_length;
  while (a.size() + b.size() > source.target_length) {
    Piece& longer = a.size() > b.size() ? a : b;
    if (random.RandomSample() < 0.5) {
      ++longer.begin;
    } else {
      --longer.end;
    }
  }
  sample->tokens.assign(1, pieces_.special.cls);
  sample->types.assign(1, 0);
  MEGATRON_RETURN_IF_ERROR(AppendText(source.first_sentence, a.begin, a.end, 0, index, sample));
  if (b.size() > 0) {
    MEGATRON_RETURN_IF_ERROR(AppendText(source.first_sentence, b.begin, b.end, 1, index, sample));
  }
  Mask(source.target_length, &random, sample);
  return absl::OkStatus();
}

absl::Status BertDataset::AppendText(int64_t first_sentence, int64_t begin, int64_t end,
                                     int32_t type, int64_t index, BertSample* sample) const {
  const size_t old_size = sample->tokens.size();
  sample->tokens.resize(old_size + static_cast<size_t>(end - begin));
  const absl::Span<int32_t> text = absl::MakeSpan(sample->tokens).subspan(old_size);
  MEGATRON_RETURN_IF_ERROR(ReadSentences(*sentences_, first_sentence, begin, text));
  MEGATRON_RETURN_IF_ERROR(CheckSentenceTokens(text, pieces_.vocab_size(), index));
  sample->tokens.push_back(pieces_.special.sep);
  sample->types.resize(sample->tokens.size(), type);
  return absl::OkStatus();
}

void BertDataset::Mask(int32_t target_length, NumpyRandomState* random, BertSample* sample) const {
  const size_t seq_length = static_cast<size_t>(options_.seq_length);
  sample->labels.assign(seq_length, -1);
  sample->loss_mask.assign(seq_length, 0.0f);
  std::vector<int32_t>& tokens = sample->tokens;
  masker_.Draw(tokens, pieces_, target_length, random, [&](int32_t position) {
    sample->labels[position] = tokens[position];
    sample->loss_mask[position] = 1.0f;
    tokens[position] = Replacement(tokens[position], random);
  });
  sample->num_tokens = PadTo(options_.seq_length, pieces_.special.pad, &tokens);
  PadTo(options_.seq_length, 0, &sample->types);
}

// 80 % become [MASK], 10 % a random token, 10 % stay.
int32_t BertDataset::Replacement(int32_t token, NumpyRandomState* random) const {
  if (random->RandomSample() < 0.8) return pieces_.special.mask;
  if (random->RandomSample() < 0.5) return token;
  return static_cast<int32_t>(random->RandInt(0, pieces_.vocab_size()));
}

absl::StatusOr<std::unique_ptr<BertDataset>> CreateMockBertDataset(Split split, WordPieces pieces,
                                                                   BertDatasetOptions options) {
  auto sentences = std::make_shared<MockSentences>(pieces);
  options.cache = {};  // there is nothing to know the corpus by
  options.documents = RangeOf(split, {1.0 / 3, 1.0 / 3, 1.0 / 3}, sentences->num_documents());
  const auto document = [&](int64_t i) { return sentences->DocumentSequences(i); };
  return BertDataset::Create(sentences, document, std::move(pieces), options);
}

}  // namespace megatron
