#include "megatron/comm/overlap/comm_stream.h"

#include "glog/logging.h"
#include "megatron/tensor/cuda_graph.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

constexpr int kEvents = 64;

}  // namespace

CommStream::CommStream(const Stream& compute, const std::string& name)
    : compute_(compute),
      cuda_(compute.device().index),
      stream_(Trace::FollowBeside(compute, Stream::Cuda(compute.device().index, &cuda_), name)),
      given_(compute.device().index) {
  for (int i = 0; i < kEvents; ++i)
    done_.push_back(std::make_unique<CudaEvent>(compute.device().index));
}

int64_t CommStream::Add(Job job) {
  given_.Record(*compute_.cuda());
  given_.HoldBack(cuda_);
  // A trace's events are read once, and those of a graph by nobody.
  job(IsCapturing(cuda_) ? stream_.TracedBy(nullptr) : stream_);
  done_[++added_ % kEvents]->Record(cuda_);
  return added_;
}

void CommStream::Wait(int64_t number) {
  CHECK_LE(number, added_);
  if (number > 0) done_[number % kEvents]->HoldBack(*compute_.cuda());
}

}  // namespace megatron
