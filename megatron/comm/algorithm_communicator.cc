#include "megatron/comm/algorithm_communicator.h"

#include <utility>

#include "megatron/comm/communicator.h"
#include "megatron/comm/forwarding_communicator.h"

namespace megatron {
namespace {

class AlgorithmCommunicator : public ForwardingCommunicator {
 public:
  AlgorithmCommunicator(std::shared_ptr<Communicator> communicator, CollectiveAlgorithm algorithm)
      : ForwardingCommunicator(std::move(communicator)), algorithm_(algorithm) {}

  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (!HasAlgorithms(call.collective)) return inner().Run(call, stream);
    CollectiveCall by = call;
    by.algorithm = algorithm_;
    inner().Run(by, stream);
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return WithAlgorithm(std::move(part), algorithm_);
  }

  const CollectiveAlgorithm algorithm_;
};

}  // namespace

std::shared_ptr<Communicator> WithAlgorithm(std::shared_ptr<Communicator> communicator,
                                            CollectiveAlgorithm algorithm) {
  if (algorithm == CollectiveAlgorithm::kMesh) return communicator;
  return std::make_shared<AlgorithmCommunicator>(std::move(communicator), algorithm);
}

}  // namespace megatron
