// A stage around another one, of which it has the edges. A subclass says what it does before and
// after each pass of the inner stage.
#ifndef MEGATRON_PIPELINE_STAGE_WRAPPER_H_
#define MEGATRON_PIPELINE_STAGE_WRAPPER_H_

#include <vector>

#include "megatron/pipeline/stage.h"

namespace megatron {

class StageWrapper : public Stage {
 public:
  std::vector<TensorSpec> InputSpecs(int microbatch, int chunk) const final {
    return inner_.InputSpecs(microbatch, chunk);
  }
  std::vector<TensorSpec> OutputSpecs(int microbatch, int chunk) const final {
    return inner_.OutputSpecs(microbatch, chunk);
  }

 protected:
  // `inner` must outlive this.
  explicit StageWrapper(Stage* inner) : inner_(*inner) {}

  Stage& inner() const { return inner_; }

 private:
  Stage& inner_;
};

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_STAGE_WRAPPER_H_
