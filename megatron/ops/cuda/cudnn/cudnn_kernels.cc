#ifdef MEGATRON_CUDNN
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/ops/cuda/cudnn/attention_runner.h"
#include "megatron/ops/cuda/cudnn/cudnn_library.h"
#include "megatron/ops/cuda/cudnn/graph_plan.h"

namespace megatron::ops::cuda {

absl::StatusOr<std::string> CudnnVersion() {
  MEGATRON_ASSIGN_OR_RETURN(const int64_t version, LoadCudnn());
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

bool RunCudnnAttention(const Stream& stream, const AttentionCall& call) {
  static CudnnAttentionRunner* const runner = [] {
    const auto version = CudnnVersion();
    CHECK(version.ok()) << version.status();
    return new CudnnAttentionRunner(CudnnGraphPlans());
  }();
  return runner->Run(stream, call);
}

}  // namespace megatron::ops::cuda
#endif  // MEGATRON_CUDNN
