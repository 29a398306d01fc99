// The form of cuda_graph.cc in a build without CUDA, where there is no stream to capture.
#include "glog/logging.h"
#include "megatron/tensor/cuda_graph.h"

namespace megatron {

#define MEGATRON_WEAK __attribute__((weak))

MEGATRON_WEAK CudaGraph::~CudaGraph() {}
MEGATRON_WEAK void CudaGraph::BeginCapture(CudaStream*) { LOG(FATAL) << "built without CUDA"; }
MEGATRON_WEAK void CudaGraph::EndCapture(CudaStream*) { LOG(FATAL) << "built without CUDA"; }
MEGATRON_WEAK void CudaGraph::Launch(CudaStream*) { LOG(FATAL) << "built without CUDA"; }

}  // namespace megatron
