// CudaGraph: operations of a stream that were written down, to be enqueued again by one call.
//
//   CudaGraph graph;
//   graph.BeginCapture(&stream);
//   ...                          // operations on the stream; none of them happens
//   graph.EndCapture(&stream);
//   graph.Launch(&stream);       // now they do, and again with every launch
//
// A graph holds kernels with the addresses and numbers that they were given at capture; the memory
// at the addresses is read when a launch runs. So whoever launches again must know that all
// addresses and numbers are still right.
//
// While a stream is captured its thread waits for nothing of a device, takes and frees no device
// memory, and copies nothing to or from the host; and no operation wants a larger workspace than
// one did before. An operation that comes for the first time may do any of these: it has run once
// before it is captured.
//
// A stream that waits for an event of the captured one is captured from then on, too. The captured
// stream must wait for all of them before the end. Nobody asks for an event of a capture, and only
// the streams of that capture wait for it, and for no other event.
//
// Collectives are captured like kernels. All their ranks launch them in one order.
//
// Threads: the stream's. Other threads may do what they like meanwhile.
#ifndef MEGATRON_TENSOR_CUDA_GRAPH_H_
#define MEGATRON_TENSOR_CUDA_GRAPH_H_

#include <cstdint>

namespace megatron {

class CudaStream;

// Returns whether operations of the stream go into a graph now.
bool IsCapturing(const CudaStream& stream);

class CudaGraph {
 public:
  CudaGraph() = default;
  ~CudaGraph();  // must follow the end of what was launched
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Begins the capture, once.
  void BeginCapture(CudaStream* stream);
  void EndCapture(CudaStream* stream);
  bool captured() const { return captured_; }
  int64_t num_operations() const { return num_operations_; }

  // Launches on the stream that was captured. The first launch is slow, because it prepares the
  // graph.
  void Launch(CudaStream* stream);

  const void* handle() const { return graph_; }

 private:
  void* graph_ = nullptr;       // a cudaGraph_t
  void* executable_ = nullptr;  // a cudaGraphExec_t
  const CudaStream* stream_ = nullptr;
  bool captured_ = false;
  int64_t num_operations_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_CUDA_GRAPH_H_
