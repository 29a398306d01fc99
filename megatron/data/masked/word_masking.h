// Chooses the words of a text that a model has to restore: the n-gram masking of BERT and T5.
//
// Vocabulary. A *word* is a token and the tokens that continue it, recognized by their spelling:
// WordPiece writes "##" before a piece inside a word. [CLS] and [SEP] belong to no word. An
// *n-gram* is n words in a row, or fewer at the end of the text. N-grams are drawn in random order
// until a share of the tokens is masked; one that overlaps an earlier one is dropped, and one that
// is too long is shortened word by word.
//
// All draws are equal to those of Megatron-LM from the same generator. Its masking_do_permutation
// is not offered: none of its programs sets it, and it draws from numpy's global generator, which
// nothing seeds.
#ifndef MEGATRON_DATA_MASKED_WORD_MASKING_H_
#define MEGATRON_DATA_MASKED_WORD_MASKING_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/data/numpy_random.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// The vocabulary as masking needs it.
struct WordPieces {
  SpecialTokens special;
  std::vector<bool> continues_word;  // whether each id of the vocabulary is spelled "##…"

  int32_t vocab_size() const { return static_cast<int32_t>(continues_word.size()); }
};

WordPieces WordPiecesOf(const Tokenizer& tokenizer);

// Options of n-gram masking. The defaults are BERT's.
struct WordMaskingOptions {
  // The share of tokens to mask, in (0, 1).
  double probability = 0.15;
  // The number of words of the longest n-gram, in [1, 128].
  int32_t max_ngram = 3;
  // True if pieces are masked together with the word that they continue.
  bool full_word = true;
  // The length n of an n-gram is drawn with a probability ∝ 1/n. The first option reverses the
  // order of these probabilities; the second makes them geometric with p = 0.2, cut at max_ngram
  // (SpanBERT, arXiv:1907.10529, section 3.1).
  bool use_longer_ngrams = false;
  bool use_geometric_distribution = false;
};

// The chosen n-grams in the order of the text.
struct MaskedNgrams {
  struct Range {
    int32_t begin, end;
  };

  std::vector<int32_t> positions;  // tokens of all chosen words, ascending
  std::vector<Range> ngrams;       // each a range of `positions`
};

class WordMasker {
 public:
  // Returns kInvalidArgument if an option is out of range.
  static absl::StatusOr<WordMasker> Create(const WordMaskingOptions& options);

  // Chooses n-grams of `tokens`, which must be in the vocabulary of `pieces`. Calls mask(position)
  // for each token of an n-gram in the order of the draws; mask may draw from `random` too. At most
  // probability × target_length tokens are masked.
  MaskedNgrams Draw(absl::Span<const int32_t> tokens, const WordPieces& pieces,
                    int32_t target_length, NumpyRandomState* random,
                    absl::FunctionRef<void(int32_t position)> mask) const;

 private:
  WordMasker(const WordMaskingOptions& options, std::vector<double> length_probabilities)
      : options_(options), length_probabilities_(std::move(length_probabilities)) {}

  int32_t DrawLength(NumpyRandomState* random) const;

  WordMaskingOptions options_;
  std::vector<double> length_probabilities_;  // probabilities of the lengths 1, 2, … max_ngram
};

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_WORD_MASKING_H_
