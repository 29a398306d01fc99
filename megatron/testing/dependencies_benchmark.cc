#include "Eigen/Core"
#include "benchmark/benchmark.h"

namespace megatron {
namespace {

void BM_EigenProduct(benchmark::State& state) {
  const Eigen::MatrixXf a = Eigen::MatrixXf::Ones(state.range(0), state.range(0));
  Eigen::MatrixXf c(a.rows(), a.cols());
  for (auto _ : state) {
    c.noalias() = a * a;
    benchmark::DoNotOptimize(c.data());
  }
}
BENCHMARK(BM_EigenProduct)->Arg(64)->Arg(256);

}  // namespace
}  // namespace megatron
