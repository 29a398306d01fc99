// The part of emulated_graph.h that a real device can answer.
#include "megatron/tensor/emulated_graph.h"

namespace megatron {

std::string FirstDifference(const CudaGraph& a, const CudaGraph& b) {
  if (a.num_operations() == b.num_operations()) return "";
  return std::to_string(a.num_operations()) + " operations; and " +
         std::to_string(b.num_operations());
}

}  // namespace megatron
