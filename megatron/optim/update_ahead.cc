#include "megatron/optim/update_ahead.h"

#include <utility>

#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr int64_t kAlignment = 64;  // in bytes, so that each part begins at a cache line

}  // namespace

absl::StatusOr<std::unique_ptr<UpdateAhead>> UpdateAhead::Create(
    const Stream& stream, const std::vector<HostPart>& parts, const std::vector<Tensor>& gradients,
    bool reads_weights, int threads, MemoryLedger* ledger) {
  CHECK(stream.device().type != DeviceType::kCpu);
  CHECK_EQ(parts.size(), gradients.size());
  std::unique_ptr<UpdateAhead> ahead(new UpdateAhead(stream, reads_weights, threads));
  int64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    ahead->parts_.push_back({parts[i], gradients[i], bytes});
    bytes += RoundUp(parts[i].weights.bytes(), kAlignment);
  }
  MEGATRON_ASSIGN_OR_RETURN(
      ahead->weights_,
      PinnedBuffer::Create(stream.device(), bytes, "host/optimizer staging", ledger));
  if (stream.is_meta()) return ahead;
  const int device = stream.device().index;
  for (auto* copies : {&ahead->to_host_, &ahead->from_host_})
    *copies = std::make_unique<CudaStream>(device);
  for (auto* event : {&ahead->given_, &ahead->taken_, &ahead->ready_, &ahead->sent_})
    *event = std::make_unique<CudaEvent>(device);
  return ahead;
}

UpdateAhead::~UpdateAhead() {
  if (thread_.joinable()) thread_.join();
  for (const auto* stream : {&to_host_, &from_host_}) {
    if (*stream != nullptr) (*stream)->Synchronize();
  }
}

HostPart UpdateAhead::OnHost(const Part& part) const {
  const Tensor& weights = part.device.weights;
  return {part.gradients, weights_.At(part.begin, weights.dtype(), weights.shape())};
}

void UpdateAhead::HoldBack(const CudaStream& copies) const {
  given_->Record(*stream_.cuda());
  given_->HoldBack(copies);
}

void UpdateAhead::TakeGradients() {
  if (stream_.is_meta()) return;
  HoldBack(*to_host_);
  for (const Part& part : parts_)
    EnqueueCopyOnCuda(to_host_.get(), part.device.gradients, part.gradients);
  taken_->Record(*to_host_);
}

void UpdateAhead::WaitForGradients() const {
  if (taken_ != nullptr) taken_->Wait();
}

void UpdateAhead::Run(const Update& update, const Stream& stream) const {
  for (size_t i = 0; i < parts_.size(); ++i) update(i, OnHost(parts_[i]), stream);
}

void UpdateAhead::Start(Update update) {
  CHECK(!thread_.joinable());
  if (stream_.is_meta()) return Run(update, stream_);
  if (reads_weights_) {
    HoldBack(*to_host_);
    sent_->HoldBack(*to_host_);  // the memory has what was sent last
    for (const Part& part : parts_)
      EnqueueCopyOnCuda(to_host_.get(), part.device.weights, OnHost(part).weights);
  }
  ready_->Record(*to_host_);
  thread_ = std::thread([this, update = std::move(update)] {
    UseCudaDevice(stream_.device().index);
    ready_->Wait();
    sent_->Wait();
    PushCudaRange("update beside the next step");
    Run(update, Stream::Cpu(&pool_));
    PopCudaRange();
  });
}

void UpdateAhead::Finish() {
  if (stream_.is_meta()) return;
  CHECK(thread_.joinable());
  thread_.join();
  ready_->Wait();  // as the thread has: what is enqueued from now on comes after the copies
  double elements = 0;
  for (const Part& part : parts_) elements += static_cast<double>(part.gradients.numel());
  RecordUpdateBeside(elements, *ready_);
  HoldBack(*from_host_);
  for (const Part& part : parts_)
    EnqueueCopyOnCuda(from_host_.get(), OnHost(part).weights, part.device.weights);
  sent_->Record(*from_host_);
  sent_->HoldBack(*stream_.cuda());
}

}  // namespace megatron
