#include "megatron/tensor/emulated_graph.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "glog/logging.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

using Operations = std::vector<EmulatedOperation>;

struct Capture {
  const CudaStream* stream = nullptr;  // null: none is captured
  Operations* operations = nullptr;
  int64_t number = 0;
  // What each captured stream's next operation comes behind: of its own, all so far.
  std::map<const CudaStream*, CapturedPoint> behind;
};

void Merge(const CapturedPoint& from, CapturedPoint* to) {
  for (const auto& [stream, count] : from) {
    int64_t& mine = (*to)[stream];
    mine = std::max(mine, count);
  }
}

Capture& Current() {
  static thread_local Capture capture;
  return capture;
}

}  // namespace

bool IsBeingCaptured(const CudaStream& stream) { return Current().behind.count(&stream) > 0; }

bool IsCapturing(const CudaStream& stream) { return IsBeingCaptured(stream); }

void WriteDown(const CudaStream& stream, EmulatedOperation operation) {
  CHECK(IsBeingCaptured(stream)) << operation.text;
  Current().operations->push_back(std::move(operation));
  ++Current().behind[&stream][&stream];
}

CapturedEvent RecordInCapture(const CudaStream& stream, std::function<void()> run) {
  WriteDown(stream, {"event", std::move(run)});
  return {Current().number, Current().behind[&stream]};
}

bool IsOfThisCapture(const CapturedEvent& event) {
  return Current().stream != nullptr && event.capture == Current().number;
}

void HoldBackInCapture(const CapturedEvent& event, const CudaStream& stream,
                       std::function<void()> run) {
  CHECK(IsOfThisCapture(event));
  Merge(event.point, &Current().behind[&stream]);
  WriteDown(stream, {"wait", std::move(run)});
}

void CheckCapturesNothing(const char* what) {
  CHECK(Current().stream == nullptr) << what << " while a stream is captured";
}

const std::vector<EmulatedOperation>& OperationsOf(const CudaGraph& graph) {
  return *static_cast<const Operations*>(graph.handle());
}

std::string FirstDifference(const CudaGraph& a, const CudaGraph& b) {
  const Operations &of_a = OperationsOf(a), &of_b = OperationsOf(b);
  for (size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i) {
    const std::string text_a = i < of_a.size() ? of_a[i].text : "nothing";
    const std::string text_b = i < of_b.size() ? of_b[i].text : "nothing";
    if (text_a != text_b)
      return "operation " + std::to_string(i) + ": " + text_a + "; and " + text_b;
  }
  return "";
}

CudaGraph::~CudaGraph() { delete static_cast<Operations*>(graph_); }

void CudaGraph::BeginCapture(CudaStream* stream) {
  CHECK(stream_ == nullptr) << "a graph is captured once";
  CheckCapturesNothing("a capture");
  stream_ = stream;
  stream->KeepWorkspaces();
  auto* const operations = new Operations;
  graph_ = operations;
  static std::atomic<int64_t> captures{0};
  Current() = {stream, operations, ++captures, {{stream, {}}}};
}

void CudaGraph::EndCapture(CudaStream* stream) {
  CHECK(stream_ == stream && Current().stream == stream);
  for (const auto& [other, behind] : Current().behind) {
    const auto done = behind.find(other);
    CHECK(done == behind.end() || Current().behind[stream][other] >= done->second)
        << "the captured stream has not waited for another one at the end";
  }
  Current() = Capture();
  num_operations_ = static_cast<int64_t>(OperationsOf(*this).size());
  captured_ = true;
}

void CudaGraph::Launch(CudaStream* stream) {
  CHECK(captured_);
  CHECK_EQ(stream_, stream);
  CheckCapturesNothing("a launch");
  for (const EmulatedOperation& operation : OperationsOf(*this)) operation.run();
}

}  // namespace megatron
