// Turns GPT samples into fill-in-the-middle exercises (Bavarian et al., arXiv:2207.14255), as
// Megatron's GPTFIMDataset does. For example, in one of two forms:
//
//   PSM  <prefix> prefix <suffix> suffix <middle> middle
//   SPM  <prefix> <suffix> suffix <middle> prefix middle    with probability `spm_rate`
//
// Vocabulary. A *segment* is the text between two EOD tokens. With probability `rate` it is cut at
// two random characters into prefix, middle and suffix. These are tokenized again and arranged so
// that a model that reads from left to right writes the middle last, having seen both sides. If
// there is a split token (for example a file separator), a segment that contains it is chosen as a
// whole with probability `rate`, and then each *fragment* between split tokens with probability
// `fragment_rate`. A sample keeps its number of tokens: excess tokens are dropped at the end,
// missing ones are padding. Tokenizing again turns the spelling of a special token into that token,
// so special tokens inside a segment survive.
//
// The draws are Megatron's, but from a generator seeded with seed + sample index. Megatron uses one
// generator for all samples in the order in which they happen to be read, so neither a resumed run
// nor another number of loader processes repeats its draws.
#ifndef MEGATRON_DATA_GPT_FILL_IN_THE_MIDDLE_H_
#define MEGATRON_DATA_GPT_FILL_IN_THE_MIDDLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/data/numpy_random.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct FillInTheMiddleOptions {
  double rate = 0.5;
  double spm_rate = 0.5;
  double fragment_rate = 0.5;
  // Spellings of tokens; each must be one token of the vocabulary.
  std::string prefix_token = "<fim_prefix>";
  std::string middle_token = "<fim_middle>";
  std::string suffix_token = "<fim_suffix>";
  std::string pad_token = "<fim_pad>";
  std::string eod_token = "<|endoftext|>";
  std::string split_token;  // if empty, segments are not split
  // Fragments that begin with this text are left unchanged; empty means none.
  std::string no_prefix;
  uint32_t seed = 1234;
};

// Any number of threads may call the const methods.
class FillInTheMiddle {
 public:
  // Returns kInvalidArgument if a rate is not in [0, 1], or if a spelling is not exactly one token.
  static absl::StatusOr<FillInTheMiddle> Create(std::shared_ptr<const Tokenizer> tokenizer,
                                                const FillInTheMiddleOptions& options);

  // Rewrites the tokens of sample `index` (its inputs and the label after them), and returns how
  // many of them are not padding. Fails if the tokenizer cannot encode a piece of the text.
  absl::StatusOr<int64_t> Apply(int64_t index, absl::Span<int32_t> tokens) const;

 private:
  struct Ids {
    int32_t prefix, middle, suffix, pad, eod, split;
  };
  using Tokens = absl::Span<const int32_t>;

  FillInTheMiddle(std::shared_ptr<const Tokenizer> tokenizer, const FillInTheMiddleOptions& options,
                  const Ids& ids)
      : tokenizer_(std::move(tokenizer)), options_(options), ids_(ids) {}

  // AddSegment and AddPermuted append to `out`.
  absl::Status AddSegment(Tokens segment, NumpyRandomState* random,
                          std::vector<int32_t>* out) const;
  absl::Status AddPermuted(Tokens fragment, double rate, NumpyRandomState* random,
                           std::vector<int32_t>* out) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  FillInTheMiddleOptions options_;
  Ids ids_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_GPT_FILL_IN_THE_MIDDLE_H_
