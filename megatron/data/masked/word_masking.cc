#include "megatron/data/masked/word_masking.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/data/numpy_sum.h"

namespace megatron {
namespace {

// Words as ranges of the positions of their tokens: word w is [begins[w], begins[w + 1]).
struct Words {
  std::vector<int32_t> positions;
  std::vector<int32_t> begins;

  int32_t size() const { return static_cast<int32_t>(begins.size()) - 1; }
};

// A piece that continues a word joins the last word, even if a [SEP] is between them.
Words FindWords(absl::Span<const int32_t> tokens, const WordPieces& pieces, bool full_word) {
  Words words;
  words.positions.reserve(tokens.size());
  words.begins.reserve(tokens.size() + 1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == pieces.special.cls || tokens[i] == pieces.special.sep) continue;
    const bool joins = full_word && pieces.continues_word[tokens[i]] && !words.begins.empty();
    if (!joins) words.begins.push_back(static_cast<int32_t>(words.positions.size()));
    words.positions.push_back(static_cast<int32_t>(i));
  }
  words.begins.push_back(static_cast<int32_t>(words.positions.size()));
  return words;
}

}  // namespace

WordPieces WordPiecesOf(const Tokenizer& tokenizer) {
  WordPieces pieces;
  pieces.special = tokenizer.special();
  pieces.continues_word.resize(tokenizer.vocab_size());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    pieces.continues_word[id] = absl::StartsWith(tokenizer.Piece(id), "##");
  }
  return pieces;
}

absl::StatusOr<WordMasker> WordMasker::Create(const WordMaskingOptions& options) {
  if (!(options.probability > 0 && options.probability < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mask_prob ", options.probability, " is not between 0 and 1"));
  }
  if (options.max_ngram < 1 || options.max_ngram > 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("n-grams of up to ", options.max_ngram, " words; it must be 1 to 128"));
  }
  std::vector<double> probabilities(options.max_ngram);
  for (size_t i = 0; i < probabilities.size(); ++i)
    probabilities[i] = 1.0 / static_cast<double>(i + 1);
  NumpyNormalize(&probabilities);
  if (options.use_longer_ngrams) std::reverse(probabilities.begin(), probabilities.end());
  // Normalizing a second time changes the last bits; Megatron does it.
  NumpyNormalize(&probabilities);
  return WordMasker(options, std::move(probabilities));
}

int32_t WordMasker::DrawLength(NumpyRandomState* random) const {
  if (options_.use_geometric_distribution) {
    return static_cast<int32_t>(std::min<int64_t>(random->Geometric(0.2), options_.max_ngram));
  }
  return static_cast<int32_t>(random->Choice(length_probabilities_)) + 1;
}

MaskedNgrams WordMasker::Draw(absl::Span<const int32_t> tokens, const WordPieces& pieces,
                              int32_t target_length, NumpyRandomState* random,
                              absl::FunctionRef<void(int32_t position)> mask) const {
  const Words words = FindWords(tokens, pieces, options_.full_word);
  // nearbyint rounds halves to even, as Python does.
  const double budget = std::min(
      options_.probability * target_length,
      std::max(1.0, std::nearbyint(static_cast<double>(tokens.size()) * options_.probability)));
  std::vector<int32_t> starts(words.size());
  std::iota(starts.begin(), starts.end(), 0);
  random->Shuffle(absl::MakeSpan(starts));

  MaskedNgrams result;
  std::vector<bool> is_masked(words.positions.size(), false);
  int32_t num_masked = 0;
  for (const int32_t start : starts) {
    if (num_masked >= budget) break;
    const int32_t begin = words.begins[start];
    const auto end_of = [&](int32_t n) { return words.begins[std::min(start + n, words.size())]; };
    int32_t n = DrawLength(random);
    while (n > 0 && num_masked + end_of(n) - begin > budget) --n;
    if (n == 0) continue;
    const int32_t end = end_of(n);
    if (std::find(is_masked.begin() + begin, is_masked.begin() + end, true) !=
        is_masked.begin() + end) {
      continue;
    }
    std::fill(is_masked.begin() + begin, is_masked.begin() + end, true);
    for (int32_t i = begin; i < end; ++i) mask(words.positions[i]);
    num_masked += end - begin;
    result.ngrams.push_back({begin, end});
  }
  std::sort(result.ngrams.begin(), result.ngrams.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  result.positions = words.positions;
  return result;
}

}  // namespace megatron
