#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/validate/rules.h"

namespace megatron {

void CheckMup(ConfigChecker& check) {
  constexpr absl::string_view kMup = "model.use_mup", kOptimizer = "optimizer.optimizer";
  const config::PretrainConfig& config = check.resolved();
  if (!config.model().use_mup()) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kMup, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  refuse(config.model().init_method_xavier_uniform(), "model.init_method_xavier_uniform",
         "its initial weights follow from their shape alone");
  const config::Optimizer::Type optimizer = config.optimizer().optimizer();
  refuse(optimizer == config::Optimizer::onebit_adam ||
             optimizer == config::Optimizer::zero_one_adam ||
             optimizer == config::Optimizer::onebit_lamb,
         kOptimizer, "what it averages over ranks has one learning rate");
  if (config.model().has_lora()) {
    check.Error(kMup,
                "cannot be used with model.lora: weights that are frozen have neither initial "
                "values nor learning rates");
  }
}

}  // namespace megatron
