#include "megatron/optim/comm_stream.h"

#include <utility>

#include "glog/logging.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

constexpr int kEvents = 64;

}  // namespace

CommStream::CommStream(const Stream& compute, std::function<void(const Job&, const Stream&)> run)
    : compute_(compute),
      run_(std::move(run)),
      cuda_(compute.device().index),
      stream_(Trace::FollowBeside(compute, Stream::Cuda(compute.device().index, &cuda_),
                                  "communication")),
      given_(compute.device().index) {
  for (int i = 0; i < kEvents; ++i)
    done_.push_back(std::make_unique<CudaEvent>(compute.device().index));
}

int64_t CommStream::Add(const Job& job) {
  given_.Record(*compute_.cuda());
  given_.HoldBack(cuda_);
  run_(job, stream_);
  done_[++added_ % kEvents]->Record(cuda_);
  return added_;
}

void CommStream::Wait(int64_t number) {
  CHECK_LE(number, added_);
  if (number > 0) done_[number % kEvents]->HoldBack(*compute_.cuda());
}

}  // namespace megatron
