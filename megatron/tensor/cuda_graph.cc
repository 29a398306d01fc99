#include "megatron/tensor/cuda_graph.h"

#include <cuda_runtime_api.h>

#include "glog/logging.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

void Check(cudaError_t error, const char* call) {
  CHECK(error == cudaSuccess) << call << ": " << cudaGetErrorName(error) << ", "
                              << cudaGetErrorString(error);
}

#define MEGATRON_CHECK_CUDA(call) Check(call, #call)

cudaStream_t Handle(const CudaStream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

}  // namespace

bool IsCapturing(const CudaStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  MEGATRON_CHECK_CUDA(cudaStreamIsCapturing(Handle(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

CudaGraph::~CudaGraph() {
  if (executable_ != nullptr)
    MEGATRON_CHECK_CUDA(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)));
  if (graph_ != nullptr) MEGATRON_CHECK_CUDA(cudaGraphDestroy(static_cast<cudaGraph_t>(graph_)));
}

// Other ranks may be threads of this process: what they do must not end the capture.
void CudaGraph::BeginCapture(CudaStream* stream) {
  CHECK(stream_ == nullptr) << "a graph is captured once";
  stream_ = stream;
  stream->KeepWorkspaces();
  MEGATRON_CHECK_CUDA(cudaStreamBeginCapture(Handle(*stream), cudaStreamCaptureModeThreadLocal));
}

void CudaGraph::EndCapture(CudaStream* stream) {
  CHECK_EQ(stream_, stream);
  cudaGraph_t graph = nullptr;
  MEGATRON_CHECK_CUDA(cudaStreamEndCapture(Handle(*stream), &graph));
  CHECK(graph != nullptr);
  graph_ = graph;
  size_t count = 0;
  MEGATRON_CHECK_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  num_operations_ = static_cast<int64_t>(count);
  captured_ = true;
}

void CudaGraph::Launch(CudaStream* stream) {
  CHECK(captured_);
  CHECK_EQ(stream_, stream);
  if (executable_ == nullptr) {
    cudaGraphExec_t executable = nullptr;
    MEGATRON_CHECK_CUDA(cudaGraphInstantiate(&executable, static_cast<cudaGraph_t>(graph_), 0));
    executable_ = executable;
    MEGATRON_CHECK_CUDA(cudaGraphDestroy(static_cast<cudaGraph_t>(graph_)));
    graph_ = nullptr;
  }
  MEGATRON_CHECK_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), Handle(*stream)));
}

}  // namespace megatron
