// Table lookups; ops/embedding.h says what is computed.
#ifndef MEGATRON_OPS_CPU_EMBEDDING_KERNELS_H_
#define MEGATRON_OPS_CPU_EMBEDDING_KERNELS_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct EmbeddingLookup {
  DType dtype = DType::kFloat32;  // the table's in forward, dy's in backward
  const int32_t* ids = nullptr;
  int64_t tokens = 0, rows = 0, columns = 0;
  int64_t first_row = 0;
};

namespace avx2 {
// Tokens [begin, end).
void EmbeddingForwardTokens(const EmbeddingLookup& lookup, const void* table, bool accumulate,
                            void* y, int64_t begin, int64_t end);
// All tokens, columns [begin, end).
void EmbeddingBackwardColumns(const EmbeddingLookup& lookup, const void* dy, float* dtable,
                              int64_t begin, int64_t end);
}  // namespace avx2
namespace avx512 {
void EmbeddingForwardTokens(const EmbeddingLookup& lookup, const void* table, bool accumulate,
                            void* y, int64_t begin, int64_t end);
void EmbeddingBackwardColumns(const EmbeddingLookup& lookup, const void* dy, float* dtable,
                              int64_t begin, int64_t end);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_EMBEDDING_KERNELS_H_
