// How often each piece of a text occurs: all that the training of a BPE vocabulary needs of it.
//
// A *word* is a piece that a split pattern cuts, in bytes. One thread at a time; threads count each
// for themselves and are merged.
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

  // Counts the pieces of one text; no piece reaches from one text into another.
  void AddText(absl::string_view text, FirstPiece first_piece);
  void AddWord(absl::string_view word, int64_t count);
  void Merge(const WordCounts& other);

  // Different words.
  size_t size() const { return counts_.size(); }
  // Pieces in all.
  int64_t total() const { return total_; }

  // In any order.
  void ForEach(absl::FunctionRef<void(absl::string_view word, int64_t count)> visit) const;

 private:
  // A copy that stays.
  absl::string_view Keep(absl::string_view word);

  absl::flat_hash_map<absl::string_view, int64_t> counts_;  // keys are in blocks_
  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t free_in_block_ = 0;
  char* next_in_block_ = nullptr;
  int64_t total_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TRAINING_WORD_COUNTS_H_
