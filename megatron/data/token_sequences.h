// Tokenized text as a numbered list of token sequences, from which datasets draw their samples.
//
// Any number of threads may call the const methods.
#ifndef MEGATRON_DATA_TOKEN_SEQUENCES_H_
#define MEGATRON_DATA_TOKEN_SEQUENCES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace megatron {

class TokenSequences {
 public:
  virtual ~TokenSequences() = default;

  virtual int64_t num_sequences() const = 0;

  // Returns the number of tokens in sequence `i`, which may be zero.
  virtual int32_t SequenceLength(int64_t i) const = 0;

  // Copies tokens [begin, begin + out.size()) of sequence `i`; the range must lie inside it. Fails
  // only if the tokens come from a file that cannot be read.
  virtual absl::Status ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKEN_SEQUENCES_H_
