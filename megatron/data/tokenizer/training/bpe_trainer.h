// Trains a byte-level BPE vocabulary (Sennrich et al., arXiv:1508.07909; on bytes: Radford et al.,
// "Language Models are Unsupervised Multitask Learners").
//
// Words are sequences of symbols, which are bytes at first. The most frequent pair of neighbours
// becomes a token and is merged everywhere; this repeats until the vocabulary has its size. Ids are
// assigned to special tokens, then to bytes in the order of their letters (byte_level_alphabet.h),
// then to merges in order.
//
// The merges are those of the BpeTrainer in Hugging Face's tokenizers 0.23 for the same words, ties
// included: of equally frequent pairs the smaller comes first, compared by ids.
//
// Pair counts are updated merge by merge, so the cost of a merge depends on the words with its pair
// and not on the corpus.
#ifndef MEGATRON_DATA_TOKENIZER_TRAINING_BPE_TRAINER_H_
#define MEGATRON_DATA_TOKENIZER_TRAINING_BPE_TRAINER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/tokenizer/training/word_counts.h"

namespace megatron {

struct BpeTrainerOptions {
  // The total number of tokens. There are fewer if the text has no more pairs to merge.
  int32_t vocab_size = 30000;
  // Pairs with a lower count are not merged.
  int64_t min_frequency = 2;
  // Special tokens get the first ids, in this order. Text that spells one is counted like any
  // other.
  std::vector<std::string> special_tokens;
  // If true, all 256 bytes are tokens, so that any text can be encoded; else only those of the
  // words.
  bool all_bytes = true;
  // If not 0, tokens of three and more bytes are shorter than this.
  int32_t max_token_length = 0;
};

struct TrainedBpe {
  // Tokens by id, spelled in the byte-level alphabet except for special tokens.
  std::vector<std::string> tokens;
  int32_t num_special_tokens = 0;                   // these come first
  std::vector<std::pair<int32_t, int32_t>> merges;  // the ids of both halves, by rank
};

// Trains a vocabulary. The result does not depend on the order of the words or the number of
// threads. `progress` is called regularly with the number of tokens so far. kInvalidArgument if an
// option is out of range, a special token is not UTF-8 or occurs twice, or vocab_size leaves no
// room for the bytes.
absl::StatusOr<TrainedBpe> TrainBpe(const WordCounts& words, const BpeTrainerOptions& options,
                                    ThreadPool* pool,
                                    absl::FunctionRef<void(int32_t num_tokens)> progress);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TRAINING_BPE_TRAINER_H_
