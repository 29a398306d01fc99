// Plans of the loaded cuDNN, through its front end. LoadCudnn comes first.
#ifndef MEGATRON_OPS_CUDA_CUDNN_GRAPH_PLAN_H_
#define MEGATRON_OPS_CUDA_CUDNN_GRAPH_PLAN_H_

#include "megatron/ops/cuda/cudnn/plan.h"

namespace megatron::ops::cuda {

// The plan maker of this process.
CudnnPlanMaker* CudnnGraphPlans();

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_GRAPH_PLAN_H_
