// Trains a byte-level BPE vocabulary (Sennrich et al., arXiv:1508.07909; on bytes: Radford et al.,
// "Language Models are Unsupervised Multitask Learners").
//
// Words are sequences of symbols, at first bytes. The most frequent pair of neighbours becomes a
// token of its own and is merged everywhere, again and again, until the vocabulary has its size.
// Ids are: special tokens, bytes in the order of their letters (byte_level_alphabet.h), then merges
// in order.
//
// The merges are those of the BpeTrainer in Hugging Face's tokenizers 0.23 for the same words, ties
// included: of equally frequent pairs the smaller comes first, compared by ids.
//
// Pair counts are kept up to date merge by merge, so that a merge costs what the words with its
// pair cost, not the corpus.
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
  // Tokens in all. There are fewer where the text has no more pairs to merge.
  int32_t vocab_size = 30000;
  // Pairs that are rarer are not merged.
  int64_t min_frequency = 2;
  // They get the first ids, in this order. Text that spells one is counted like any other.
  std::vector<std::string> special_tokens;
  // All 256 bytes are tokens, so that any text can be encoded; else those that the words have.
  bool all_bytes = true;
  // Where it is not 0, tokens of three and more bytes are shorter than this.
  int32_t max_token_length = 0;
};

struct TrainedBpe {
  std::vector<std::string>
      tokens;                      // by id; spelled in the byte-level alphabet but for special ones
  int32_t num_special_tokens = 0;  // they come first
  std::vector<std::pair<int32_t, int32_t>> merges;  // the ids of both sides, by rank
};

// The result depends on neither the order of the words nor the number of threads. `progress` is
// called now and then with the number of tokens so far. kInvalidArgument where options are out of
// their range, a special token is no UTF-8 or stands twice, or vocab_size leaves no room for the
// bytes.
absl::StatusOr<TrainedBpe> TrainBpe(const WordCounts& words, const BpeTrainerOptions& options,
                                    ThreadPool* pool,
                                    absl::FunctionRef<void(int32_t num_tokens)> progress);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TRAINING_BPE_TRAINER_H_
