// Graphs (cuda_graph.h) of the emulated device: operations with copies of all that they were given,
// which a launch carries out one after the other. So a number that the host has changed since is
// the old one, and memory is read as it is then, as on a real device.
//
// The program ends where it does what a real device refuses during a capture, or what a graph would
// lose.
#ifndef MEGATRON_TENSOR_EMULATED_GRAPH_H_
#define MEGATRON_TENSOR_EMULATED_GRAPH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "megatron/tensor/cuda_graph.h"

namespace megatron {

class CudaStream;

struct EmulatedOperation {
  std::string text;  // its name and its operands: two with equal ones do the same
  std::function<void()> run;
};

// Returns whether this thread is capturing the stream.
bool IsBeingCaptured(const CudaStream& stream);
void WriteDown(const CudaStream& stream, EmulatedOperation operation);
// `what` is not allowed while this thread captures any stream.
void CheckCapturesNothing(const char* what);

// An event of a capture: the number of operations of each stream that it stands behind.
using CapturedPoint = std::map<const CudaStream*, int64_t>;
struct CapturedEvent {
  int64_t capture = 0;  // the capture's number; 0 means none
  CapturedPoint point;
};
// Records an event on a stream that is captured; `run` does so with each launch.
CapturedEvent RecordInCapture(const CudaStream& stream, std::function<void()> run);
// Returns whether the event is of the capture that this thread makes now.
bool IsOfThisCapture(const CapturedEvent& event);
// The stream, which is captured from now on, waits for an event of the capture.
void HoldBackInCapture(const CapturedEvent& event, const CudaStream& stream,
                       std::function<void()> run);

const std::vector<EmulatedOperation>& OperationsOf(const CudaGraph& graph);

// Describes the first operations in which the graphs differ; empty where they do the same. On a
// real device they are only counted.
std::string FirstDifference(const CudaGraph& a, const CudaGraph& b);

}  // namespace megatron

#endif  // MEGATRON_TENSOR_EMULATED_GRAPH_H_
