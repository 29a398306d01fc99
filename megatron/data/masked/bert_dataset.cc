#include "megatron/data/masked/bert_dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

absl::Status Check(const WordPieces& pieces) {
  const SpecialTokens& special = pieces.special;
  return CheckSpecialTokens("BERT", pieces.vocab_size(),
                            {{special.cls, "[CLS]"},
                             {special.sep, "[SEP]"},
                             {special.mask, "[MASK]"},
                             {special.pad, "padding"}});
}

// One [CLS] and two [SEP] take three positions of seq_length.
SampleForm Form(const BertDatasetOptions& options) {
  return {"BERTMaskedWordPieceDataset", options.seq_length - 3,
          options.classification_head ? 2 : 1};
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
  MEGATRON_ASSIGN_OR_RETURN(MaskedCorpus corpus,
                            MaskedCorpus::Create(std::move(sentences), document, std::move(pieces),
                                                 options, Form(options)));
  return std::unique_ptr<BertDataset>(new BertDataset(std::move(corpus), options));
}

absl::Status BertDataset::Get(int64_t index, BertSample* sample) const {
  MEGATRON_RETURN_IF_ERROR(CheckSampleIndex(index, size()));
  const SentenceSample& source = corpus_.samples[index];
  // The seed wraps around at 2^32, as Megatron's does.
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
    a.end += corpus_.sentences->SequenceLength(source.first_sentence + i);
  Piece b = {a.end, a.end};
  for (int32_t i = pivot; i < source.num_sentences; ++i)
    b.end += corpus_.sentences->SequenceLength(source.first_sentence + i);
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
  sample->tokens.assign(1, corpus_.pieces.special.cls);
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
  MEGATRON_RETURN_IF_ERROR(ReadSentences(*corpus_.sentences, first_sentence, begin, text));
  MEGATRON_RETURN_IF_ERROR(CheckSentenceTokens(text, corpus_.pieces.vocab_size(), index));
  sample->tokens.push_back(corpus_.pieces.special.sep);
  sample->types.resize(sample->tokens.size(), type);
  return absl::OkStatus();
}

void BertDataset::Mask(int32_t target_length, NumpyRandomState* random, BertSample* sample) const {
  const size_t seq_length = static_cast<size_t>(options_.seq_length);
  sample->labels.assign(seq_length, -1);
  sample->loss_mask.assign(seq_length, 0.0f);
  std::vector<int32_t>& tokens = sample->tokens;
  corpus_.masker.Draw(tokens, corpus_.pieces, target_length, random, [&](int32_t position) {
    sample->labels[position] = tokens[position];
    sample->loss_mask[position] = 1.0f;
    tokens[position] = Replacement(tokens[position], random);
  });
  sample->num_tokens = PadTo(options_.seq_length, corpus_.pieces.special.pad, &tokens);
  PadTo(options_.seq_length, 0, &sample->types);
}

// A masked token becomes [MASK] in 80 % of the cases and a random token in 10 %; in 10 % it is
// kept.
int32_t BertDataset::Replacement(int32_t token, NumpyRandomState* random) const {
  if (random->RandomSample() < 0.8) return corpus_.pieces.special.mask;
  if (random->RandomSample() < 0.5) return token;
  return static_cast<int32_t>(random->RandInt(0, corpus_.pieces.vocab_size()));
}

}  // namespace megatron
