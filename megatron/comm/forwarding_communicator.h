// A communicator that hands every call to another, as a base of those that change or watch some.
#ifndef MEGATRON_COMM_FORWARDING_COMMUNICATOR_H_
#define MEGATRON_COMM_FORWARDING_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/communicator.h"

namespace megatron {

class ForwardingCommunicator : public Communicator {
 public:
  int size() const override { return inner_->size(); }
  int rank() const override { return inner_->rank(); }
  const std::string& name() const override { return inner_->name(); }
  bool TakesTensorsOf(DeviceType type) const override { return inner_->TakesTensorsOf(type); }
  void Run(const CollectiveCall& call, const Stream& stream) override { inner_->Run(call, stream); }
  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<std::vector<int>>& partition, const std::string& name) final {
    absl::StatusOr<std::shared_ptr<Communicator>> part = inner_->Split(partition, name);
    if (!part.ok()) return part;
    return Wrap(*std::move(part));
  }
  absl::Status status() const override { return inner_->status(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 protected:
  explicit ForwardingCommunicator(std::shared_ptr<Communicator> communicator)
      : inner_(std::move(communicator)) {}

  // Returns what Split returns for this part of the inner communicator.
  virtual std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) = 0;

  Communicator& inner() const { return *inner_; }

 private:
  const std::shared_ptr<Communicator> inner_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_FORWARDING_COMMUNICATOR_H_
