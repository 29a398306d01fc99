#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {

// Gradients in bf16 are formed in fp32 block by block, and are sent as they are kept.
void CheckMainGrads(ConfigChecker& check) {
  constexpr absl::string_view kDtype = "optimizer.main_grads_dtype";
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  if (config.optimizer().main_grads_dtype() == config::MainGradsDtype::fp32 ||
      !check.Usable({kDtype})) {
    return;
  }
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kDtype, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  refuse(parallel.ddp_bucket_size() > 0, "parallel.ddp_bucket_size",
         "the gradients of one layer at a time are there in fp32");
  constexpr absl::string_view kSent = "gradients are sent in the type in which they are kept";
  refuse(parallel.communication_data_type() != config::CommunicationDataType::fp32,
         "parallel.communication_data_type", kSent);
  refuse(parallel.zero_quantized_gradients(), "parallel.zero_quantized_gradients", kSent);
  refuse(parallel.sparse_gradients(), "parallel.sparse_gradients", kSent);
  refuse(config.gradient_compression().type() != config::GradientCompression::none,
         "gradient_compression.type", kSent);
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every",
         "outer steps use the memory of gradients for sums in fp32");
  const bool on_cpu =
      config.system().has_device() && config.system().device() == config::Device::cpu;
  refuse(!on_cpu && config.system().cuda_graph_impl() != config::CudaGraphImpl::none,
         "system.cuda_graph_impl", "gradients of a layer lie elsewhere in each pass");
}

}  // namespace megatron
