// Counts how often each piece of a text occurs, which is all that training a BPE vocabulary needs.
//
// A *word* is a piece made by a split pattern, in bytes. One thread at a time may use an object;
// several threads count separately, and their counts are merged.
#ifndef MEGATRON_DATA_TOKENIZER_TRAINING_WORD_COUNTS_H_
#define MEGATRON_DATA_TOKENIZER_TRAINING_WORD_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"

namespace megatron {

class WordCounts {
 public:
  WordCounts() = default;
  WordCounts(WordCounts&&) = default;
  WordCounts& operator=(WordCounts&&) = default;

  // Counts the pieces of one text; pieces do not span texts.
  void AddText(absl::string_view text, FirstPiece first_piece);
  void AddWord(absl::string_view word, int64_t count);
  void Merge(const WordCounts& other);

  // The number of different words.
  size_t size() const { return counts_.size(); }
  // The total number of words.
  int64_t total() const { return total_; }

  // Calls `visit` for all words, in any order.
  void ForEach(absl::FunctionRef<void(absl::string_view word, int64_t count)> visit) const;

 private:
  // Returns a copy of the word that this object owns.
  absl::string_view Keep(absl::string_view word);

  absl::flat_hash_map<absl::string_view, int64_t> counts_;  // keys point into blocks_
  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t free_in_block_ = 0;
  char* next_in_block_ = nullptr;
  int64_t total_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TRAINING_WORD_COUNTS_H_
