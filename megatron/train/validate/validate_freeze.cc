#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/tensor/name_patterns.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr absl::string_view kFreeze = "optimizer.freeze", kLora = "model.lora";

// What frozen parameters cannot be used with. An error is about `field`, which freezes them.
void CheckWhatFreezes(ConfigChecker& check, absl::string_view field) {
  const config::PretrainConfig& config = check.resolved();
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (!broken || !check.Usable({path})) return;
    const std::string message =
        absl::StrCat("cannot be used with ", check.Named(path), ": ", because);
    if (field == kLora) return check.MessageError(field, message);
    check.Error(field, message);
  };
  const config::Optimizer::Type optimizer = config.optimizer().optimizer();
  refuse(optimizer == config::Optimizer::onebit_adam ||
             optimizer == config::Optimizer::onebit_lamb ||
             optimizer == config::Optimizer::zero_one_adam,
         "optimizer.optimizer", "it averages the momentum of all parameters");
  refuse(config.gradient_compression().type() != config::GradientCompression::none,
         "gradient_compression.type", "it keeps errors of all gradients");
  refuse(config.optimizer().qk_clip(), "optimizer.qk_clip",
         "it scales the weights of queries and keys");
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every", "islands average all weights");
  refuse(!check.IsDefault("parallel.tensor_parallel_mode"), "parallel.tensor_parallel_mode",
         "its layers compute all gradients");
  refuse(config.parallel().param_cpu_offload(), "parallel.param_cpu_offload",
         "weights in host memory have gradients there");
  refuse(config.parallel().grad_cpu_offload(), "parallel.grad_cpu_offload",
         "weights whose states are in host memory have gradients there");
  refuse(config.precision().fp8_param_gather(), "precision.fp8_param_gather",
         "all ranks compute with the weights that were sent as codes, and these are not sent");
}

}  // namespace

void CheckFreeze(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  if (config.model().has_lora()) CheckWhatFreezes(check, kLora);
  if (config.optimizer().freeze().empty() || !check.Usable({kFreeze})) return;
  const std::vector<std::string> expressions(config.optimizer().freeze().begin(),
                                             config.optimizer().freeze().end());
  const absl::StatusOr<NamePatterns> patterns = NamePatterns::Create(expressions);
  if (!patterns.ok()) check.Error(kFreeze, patterns.status().message());
  if (!config.model().has_lora()) CheckWhatFreezes(check, kFreeze);
}

}  // namespace megatron
