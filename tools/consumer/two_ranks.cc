// Uses //megatron/comm, //megatron/data, //megatron/layers and what these stand on: turns a text
// into byte tokens, and multiplies their one-hot rows by a pair of linear layers, once on one rank
// and once cut over two ranks that are threads. Both must give the same numbers.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/status/status.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace {

using megatron::DType;
using megatron::Tensor;

constexpr int64_t kFeatures = 64;
constexpr int64_t kOutputs = 8;
constexpr uint64_t kSeed = 1234;

// The memory of a layer's weights, initialized from the seed.
class Weights {
 public:
  explicit Weights(const std::vector<megatron::Parameter*>& parameters) {
    for (megatron::Parameter* parameter : parameters) {
      const megatron::Shape& shape = parameter->sharding.local_shape;
      buffers_.emplace_back(megatron::Device(), shape.numel() * int64_t{sizeof(float)}, "weights",
                            &ledger_);
      parameter->data = buffers_.back().At(0, DType::kFloat32, shape);
      megatron::FillInitial(*parameter, kSeed, parameter->data);
    }
  }

 private:
  megatron::MemoryLedger ledger_;
  std::vector<megatron::Buffer> buffers_;
};

absl::Status TokensThroughTwoLayers(const std::vector<int32_t>& tokens, int64_t vocab_size,
                                    const megatron::ProcessGroup& group,
                                    std::vector<float>* result) {
  megatron::LinearOptions into;
  into.name = "into";
  into.input_size = vocab_size;
  into.output_shape = {kFeatures};
  megatron::LinearOptions out_of;
  out_of.name = "out_of";
  out_of.input_size = kFeatures;
  out_of.output_shape = {kOutputs};
  megatron::ColumnParallelLinear column(into, group);
  megatron::RowParallelLinear row(out_of, group);
  std::vector<megatron::Parameter*> parameters;
  column.AppendParameters(&parameters);
  row.AppendParameters(&parameters);
  const Weights weights(parameters);

  megatron::ThreadPool pool(1);
  megatron::MemoryLedger ledger;
  megatron::Arena saved({}, 1 << 24, "saved", &ledger), scratch({}, 1 << 24, "scratch", &ledger);
  megatron::MicroBatch batch;
  const megatron::LayerContext ctx = {
      group, megatron::Stream::Cpu(&pool), &saved, &scratch, &batch, kSeed, false};

  const auto num_tokens = static_cast<int64_t>(tokens.size());
  const Tensor x = saved.Allocate(DType::kFloat32, {num_tokens, vocab_size}, "x");
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = 0;
  for (int64_t t = 0; t < num_tokens; ++t) x.data<float>()[t * vocab_size + tokens[t]] = 1;
  const Tensor features =
      saved.Allocate(DType::kFloat32, {num_tokens, column.output_size()}, "features");
  const Tensor y = saved.Allocate(DType::kFloat32, {num_tokens, kOutputs}, "y");
  megatron::LinearSaved column_saved, row_saved;
  column.Forward(ctx, x, features, &column_saved);
  row.Forward(ctx, features, y, &row_saved);
  result->assign(y.data<float>(), y.data<float>() + y.numel());
  return group.status();
}

bool Close(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    // Two ranks sum the features in two parts.
    if (std::abs(a[i] - b[i]) > 1e-6f) return false;
  }
  return true;
}

}  // namespace

int main() {
  const megatron::ByteLevelTokenizer tokenizer;
  std::vector<int32_t> tokens;
  absl::Status status = tokenizer.Encode("Libraries can be taken one by one.", &tokens);
  std::vector<float> alone, first, second;
  if (status.ok()) {
    status = TokensThroughTwoLayers(tokens, tokenizer.vocab_size(), {}, &alone);
  }
  if (status.ok()) {
    status = megatron::RunRanks(2, [&](int rank, const megatron::ProcessGroup& world) {
      return TokensThroughTwoLayers(tokens, tokenizer.vocab_size(), world,
                                    rank == 0 ? &first : &second);
    });
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  if (!Close(alone, first) || first != second) {
    std::fprintf(stderr, "one rank and two ranks disagree\n");
    return 1;
  }
  std::printf("%zu tokens: two ranks agree with one\n", tokens.size());
  return 0;
}
