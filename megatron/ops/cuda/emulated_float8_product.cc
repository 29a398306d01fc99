// Products of 8-bit floats of the emulated device, which has no cuBLASLt.
#include "megatron/ops/cuda/emulated_op.h"
#include "megatron/ops/float8/product.h"

namespace megatron::ops::cuda {
namespace {

[[maybe_unused]] const bool products = EmulateInGraphs<Float8Product, AddFloat8Product>();

}  // namespace
}  // namespace megatron::ops::cuda
