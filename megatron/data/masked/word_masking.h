// Which words of a text a model has to restore: the n-gram masking of BERT and T5.
//
// Vocabulary. A *word* is a token and the tokens that continue it, told by their spelling:
// WordPiece writes "##" before a piece inside a word. [CLS] and [SEP] belong to no word. An
// *n-gram* is n words in a row, fewer at the end of the text. N-grams are drawn in random order
// until a share of the tokens is masked; one that overlaps an earlier one is dropped, and one that
// does not fit is cut short, word by word.
//
// All is equal, draw for draw, to what Megatron-LM draws from the same generator. Its
// masking_do_permutation is not offered: none of its programs sets it, and it draws from numpy's
// global generator, which nothing seeds.
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

// What masking needs to know of a tokenizer.
struct WordPieces {
  SpecialTokens special;
  std::vector<bool> continues_word;  // of each id of the vocabulary: spelled "##…"

  int32_t vocab_size() const { return static_cast<int32_t>(continues_word.size()); }
};

WordPieces WordPiecesOf(const Tokenizer& tokenizer);

// The defaults are BERT's.
struct WordMaskingOptions {
  // The share of tokens to mask; in (0, 1).
  double probability = 0.15;
  // Words of the longest n-gram; in [1, 128].
  int32_t max_ngram = 3;
  // Whether pieces are masked together with the word that they continue.
  bool full_word = true;
  // The length n of an n-gram is drawn with a probability ∝ 1/n; or, by choice, with those
  // probabilities in reverse order, or geometric with p = 0.2, cut at max_ngram (SpanBERT,
  // arXiv:1907.10529, section 3.1).
  bool use_longer_ngrams = false;
  bool use_geometric_distribution = false;
};

// N-grams that were chosen, in the order of the text.
struct MaskedNgrams {
  struct Range {
    int32_t begin, end;
  };

  std::vector<int32_t> positions;  // of the tokens of all words, ascending
  std::vector<Range> ngrams;       // each a range of `positions`
};

class WordMasker {
 public:
  // kInvalidArgument where an option is out of its range.
  static absl::StatusOr<WordMasker> Create(const WordMaskingOptions& options);

  // Chooses n-grams of `tokens`, all inside the vocabulary of `pieces`, and calls mask(position)
  // for each of their tokens, in the order in which they are drawn: it may draw too. At most
  // probability × target_length tokens are masked.
  MaskedNgrams Draw(absl::Span<const int32_t> tokens, const WordPieces& pieces,
                    int32_t target_length, NumpyRandomState* random,
                    absl::FunctionRef<void(int32_t position)> mask) const;

 private:
  WordMasker(const WordMaskingOptions& options, std::vector<double> length_probabilities)
      : options_(options), length_probabilities_(std::move(length_probabilities)) {}

  int32_t DrawLength(NumpyRandomState* random) const;

  WordMaskingOptions options_;
  std::vector<double> length_probabilities_;  // of 1, 2, … max_ngram
};

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_WORD_MASKING_H_
