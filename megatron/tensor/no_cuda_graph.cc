// The form of cuda_graph.cc in a build without CUDA, where there is no stream to capture. A test's
// own device replaces it as it replaces no_cuda_device.cc.
#include "glog/logging.h"
#include "megatron/tensor/cuda_graph.h"

namespace megatron {

bool IsCapturing(const CudaStream&) { return false; }
CudaGraph::~CudaGraph() {}
void CudaGraph::BeginCapture(CudaStream*) { LOG(FATAL) << "built without CUDA"; }
void CudaGraph::EndCapture(CudaStream*) { LOG(FATAL) << "built without CUDA"; }
void CudaGraph::Launch(CudaStream*) { LOG(FATAL) << "built without CUDA"; }

}  // namespace megatron
