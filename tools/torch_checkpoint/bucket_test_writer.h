// Writes the states of Megatron's distributed optimizer as its form dp_reshardable has them, for
// tests. It does what Megatron does: it lists the parameters as modules register them, lays them
// into buffers from the last to the first, closes buckets, and cuts these over data-parallel ranks.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_BUCKET_TEST_WRITER_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_BUCKET_TEST_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/torch_checkpoint/torch_test_writer.h"

namespace megatron {

struct BucketTestLayout {
  int64_t tensor = 1, stages = 1, chunks = 1, data = 1;
  // The number of elements that fills a bucket of the first stage; 0: there is one bucket.
  int64_t bucket_size = 0;
  bool transformer_engine = true;
  // With `expert` above 1 experts have an optimizer of their own. Else `expert_tensor` is `tensor`.
  int64_t expert = 1, expert_tensor = 1;
  bool grouped_experts = true;  // in one module; else each is one
};

// Adds the buckets, and the objects that say how many updates each group of parameters had.
// `tensors` are those of a run of ours: weights, "optimizer.state.exp_avg.NAME" and so on; a weight
// without a master is its own.
void AddBuckets(const std::map<std::string, TestTensor>& tensors, const BucketTestLayout& layout,
                const std::vector<int64_t>& adam_steps, DcpWriter* writer);

// Writes the arguments that say how ranks share the model.
void WriteLayout(const BucketTestLayout& layout, PickleWriter* pickle);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_BUCKET_TEST_WRITER_H_
