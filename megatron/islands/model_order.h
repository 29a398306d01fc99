// The one order of all elements of the whole model that islands and their server have in common:
// the tensors of the agreement lie one behind the other. No layout of any island is in it.
#ifndef MEGATRON_ISLANDS_MODEL_ORDER_H_
#define MEGATRON_ISLANDS_MODEL_ORDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "megatron/islands/island_protocol.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class ModelOrder {
 public:
  ModelOrder() = default;
  explicit ModelOrder(const std::vector<NamedShape>& tensors);

  int64_t elements() const { return elements_; }

  // Elements of a block that lie together in the model: the index of the first in the block and in
  // the model.
  struct Run {
    int64_t in_block = 0;
    int64_t in_model = 0;
    int64_t count = 0;
  };
  // Calls `run` for all elements of the block. kInvalidArgument for a block that is not in the
  // model.
  absl::Status ForEachRun(const TensorBlock& block, absl::FunctionRef<void(const Run&)> run) const;

 private:
  struct Place {
    int64_t begin = 0;
    Shape shape;
  };
  std::map<std::string, Place> places_;
  int64_t elements_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_MODEL_ORDER_H_
