#include "megatron/comm/algorithm_communicator.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"

namespace megatron {
namespace {

class AlgorithmCommunicator : public Communicator {
 public:
  AlgorithmCommunicator(std::shared_ptr<Communicator> communicator, CollectiveAlgorithm algorithm)
      : communicator_(std::move(communicator)), algorithm_(algorithm) {}

  int size() const override { return communicator_->size(); }
  int rank() const override { return communicator_->rank(); }
  const std::string& name() const override { return communicator_->name(); }
  bool TakesTensorsOf(DeviceType type) const override {
    return communicator_->TakesTensorsOf(type);
  }
  absl::Status status() const override { return communicator_->status(); }
  void Abort(const absl::Status& reason) override { communicator_->Abort(reason); }

  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (!HasAlgorithms(call.collective)) return communicator_->Run(call, stream);
    CollectiveCall by = call;
    by.algorithm = algorithm_;
    communicator_->Run(by, stream);
  }

  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<std::vector<int>>& partition, const std::string& name) override {
    MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> part,
                              communicator_->Split(partition, name));
    return WithAlgorithm(std::move(part), algorithm_);
  }

 private:
  const std::shared_ptr<Communicator> communicator_;
  const CollectiveAlgorithm algorithm_;
};

}  // namespace

std::shared_ptr<Communicator> WithAlgorithm(std::shared_ptr<Communicator> communicator,
                                            CollectiveAlgorithm algorithm) {
  if (algorithm == CollectiveAlgorithm::kMesh) return communicator;
  return std::make_shared<AlgorithmCommunicator>(std::move(communicator), algorithm);
}

}  // namespace megatron
