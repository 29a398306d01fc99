// What the kernels of each op do to the emulated device's memory, for tests.
//
//   OpTraffic traffic;      // from now on
//   ... a step on the device ...
//   traffic.ops().at("NormForward").launches
//
// A kernel belongs to the op that launches it, and not to those that call that op. Products of
// cuBLASLt are launches, of whose bytes only those of epilogues are known; copies and fills of
// memory are none.
#ifndef MEGATRON_OPS_CUDA_OP_TRAFFIC_H_
#define MEGATRON_OPS_CUDA_OP_TRAFFIC_H_

#include <cstdint>
#include <map>
#include <string>

#include "megatron/ops/cuda/emulation/accesses.h"

namespace megatron::ops::cuda {

class OpTraffic {
 public:
  struct Op {
    int64_t launches = 0;
    // The bytes by the names under which memory was taken ("activations/saved", "weights",
    // "workspace").
    std::map<std::string, emulation::AccessedBytes> by_memory;
  };

  OpTraffic();

  // The ops by their names.
  const std::map<std::string, Op>& ops() const { return ops_; }

 private:
  std::map<std::string, Op> ops_;
  emulation::AccessCounter counter_;
};

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_OP_TRAFFIC_H_
