// Plans of the cuDNN that was loaded, through its front end. After LoadCudnn.
#ifndef MEGATRON_OPS_CUDA_CUDNN_GRAPH_PLAN_H_
#define MEGATRON_OPS_CUDA_CUDNN_GRAPH_PLAN_H_

#include "megatron/ops/cuda/cudnn/plan.h"

namespace megatron::ops::cuda {

// The maker of this process.
CudnnPlanMaker* CudnnGraphPlans();

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_GRAPH_PLAN_H_
