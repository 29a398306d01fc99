// A small model for tests of the optimizer: parameters, their memory, an optimizer and the
// communication of data-parallel ranks.
#ifndef MEGATRON_OPTIM_TEST_MODEL_H_
#define MEGATRON_OPTIM_TEST_MODEL_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/data_parallel.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/rules/make_update_rule.h"

namespace megatron {

// Momentum, divided by its norm over the whole parameter: a rule whose parameters shards may not
// cut.
class NormedMomentumRule : public UpdateRule {
 public:
  std::string name() const override { return "normed_momentum"; }
  std::vector<OptimizerState> states() const override { return {{"momentum_buffer"}}; }
  ShardUnit unit() const override { return ShardUnit::kParameter; }

  void Update(const UpdateRange& range, const Stream& stream) const override {
    if (stream.is_meta()) return;
    const int64_t size = range.parameter->sharding.local_shape.numel();
    CHECK_EQ(range.gradients.numel(), size) << range.parameter->name;
    const float* gradients = range.gradients.data<float>();
    float* momentum = range.states[0].data<float>();
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) {
      momentum[i] = 0.5f * momentum[i] + range.grad_scale * gradients[i];
      squares += static_cast<double>(momentum[i]) * momentum[i];
    }
    const float lr = range.segments[0].lr / static_cast<float>(std::sqrt(squares) + 1e-6);
    for (int64_t i = 0; i < size; ++i) range.masters.data<float>()[i] -= lr * momentum[i];
    if (!range.weights.empty()) ops::Copy(stream, range.masters, range.weights);
  }
};

struct TestModel {
  explicit TestModel(const OptimizerOptions& options = {}, DType dtype = DType::kFloat32)
      : options(options), dtype(dtype) {}

  Parameter* Add(const std::string& name, const Sharding& sharding, bool decays = true) {
    parameters.push_back(std::make_unique<Parameter>());
    Parameter* parameter = parameters.back().get();
    parameter->name = name;
    parameter->sharding = sharding;
    parameter->initializer = Initializer::Normal(0.5f);
    parameter->weight_decay = decays;
    return parameter;
  }

  void Build(Device device = {}) {
    std::vector<Parameter*> pointers;
    for (const auto& parameter : parameters) pointers.push_back(parameter.get());
    buffer_options.model_dtype = dtype;
    buffer_options.device = device;
    if (rule == nullptr) rule = MakeUpdateRule(options);
    buffer_options.states = rule->states();
    buffer_options.unit = rule->unit();
    buffers = std::make_unique<ParameterBuffers>(pointers, buffer_options, &ledger);
    optimizer = std::make_unique<Optimizer>(std::move(rule), buffers.get(), &ledger);
  }

  // Connects the groups. All ranks of them call it after Build.
  void Connect(const ProcessGroups& groups, const Stream& stream,
               const DataParallelOptions& how = {}, const WholeBlockSizes& sizes = {}) {
    auto created = DataParallel::Create(how, groups, sizes, buffers.get(), stream, &ledger);
    CHECK(created.ok()) << created.status();
    parallel = std::move(*created);
    optimizer->PrepareWholeParameters(groups, &ledger);
  }

  // One step, with the gradients that the parameters have.
  absl::StatusOr<StepResult> Step(const StepOptions& how, const ProcessGroups& groups,
                                  const Stream& stream) {
    parallel->FinalizeGradients();
    absl::StatusOr<StepResult> result = optimizer->Step(how, groups, stream);
    if (result.ok() && result->weights_changed) parallel->ShareWeights();
    return result;
  }

  OptimizerOptions options;
  std::unique_ptr<UpdateRule> rule;  // in place of that of the options; Build takes it
  DType dtype;
  // Build sets the dtype, the device, the states and the unit.
  ParameterBuffersOptions buffer_options;
  MemoryLedger ledger;
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::unique_ptr<ParameterBuffers> buffers;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<DataParallel> parallel;
};

inline std::vector<float> Floats(const Tensor& tensor) {
  const float* data = tensor.data<float>();
  return std::vector<float>(data, data + tensor.numel());
}

// Returns a small binary fraction, so that sums of a few of them are exact.
inline float Fraction(int64_t i) { return static_cast<float>((i * 7) % 13 - 6) / 8; }

inline void FillGradients(const Parameter& parameter, int64_t first) {
  float* grad = parameter.grad.data<float>();
  for (int64_t i = 0; i < parameter.grad.numel(); ++i) grad[i] = Fraction(first + i);
}

}  // namespace megatron

#endif  // MEGATRON_OPTIM_TEST_MODEL_H_
