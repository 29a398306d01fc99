// Tokenized text as a numbered list of token sequences: what datasets draw their samples from.
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

  // Tokens in sequence `i`; zero is fine.
  virtual int32_t SequenceLength(int64_t i) const = 0;

  // Copies tokens [begin, begin + out.size()) of sequence `i`; the range must lie inside it. Fails
  // where they come from a file that cannot be read, and never else.
  virtual absl::Status ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKEN_SEQUENCES_H_
