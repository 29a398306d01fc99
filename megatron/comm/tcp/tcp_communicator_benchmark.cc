// Bandwidth over TCP on this machine: of a message from one rank to another, beside the same bytes
// through a bare socket, and of all-reduce. bytes_per_second is nccl-tests' "algbw": bytes of one
// rank's buffer over the time of a call.

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/tcp/run_tcp_ranks.h"

namespace megatron {
namespace {

// The time until a message has arrived and one byte has come back.
void BM_RawSocket(benchmark::State& state) {
  const absl::Time deadline = absl::InfiniteFuture();
  const Socket listener = ListenTcp({"127.0.0.1", 0}).value();
  Socket client = ConnectTcp(LocalEndpoint(listener).value(), deadline).value();
  const Socket server = AcceptTcp(listener).value();
  const size_t bytes = state.range(0);
  std::thread receiver([&] {
    std::vector<char> buffer(bytes);
    while (ReceiveAll(server, buffer.data(), bytes, deadline).ok() &&
           SendAll(server, "x", deadline).ok()) {
    }
  });
  {
    const std::string message(bytes, 'x');
    char answer;
    for (auto _ : state) {
      CHECK(SendAll(client, message, deadline).ok());
      CHECK(ReceiveAll(client, &answer, 1, deadline).ok());
    }
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
  client.Close();
  receiver.join();
}

// Rank 0 decides, with the library, when to stop, and tells the others after every call.
template <typename Fn>
void RunRanks(benchmark::State& state, int ranks, const Fn& fn) {
  const absl::Status status = RunTcpRanksOnThreads(ranks, [&](int rank, const ProcessGroup& world) {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    std::vector<float> values(state.range(0) / sizeof(float));
    const Tensor tensor(values.data(), DType::kFloat32, {int64_t(values.size())});
    int32_t go_on = 1;
    const Tensor go_on_tensor(&go_on, DType::kInt32, {1});
    const int calls = static_cast<int>(std::clamp<int64_t>((1 << 20) / state.range(0), 1, 20));
    while (true) {
      if (rank == 0) go_on = state.KeepRunningBatch(calls) ? 1 : 0;
      world.Broadcast(go_on_tensor, 0, stream);
      if (go_on == 0) return world.status();
      for (int i = 0; i < calls; ++i) fn(world, tensor, stream);
    }
  });
  CHECK(status.ok()) << status;
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void BM_Message(benchmark::State& state) {
  RunRanks(state, 2, [](const ProcessGroup& world, const Tensor& tensor, const Stream& stream) {
    if (world.rank() == 0) world.Exchange({{1, tensor}}, {}, stream);
    if (world.rank() == 1) world.Exchange({}, {{0, tensor}}, stream);
  });
}

void BM_AllReduce(benchmark::State& state) {
  RunRanks(state, static_cast<int>(state.range(1)),
           [](const ProcessGroup& world, const Tensor& tensor, const Stream& stream) {
             world.AllReduce(tensor, ReduceOp::kSum, stream);
           });
}

BENCHMARK(BM_RawSocket)->ArgName("bytes")->Arg(4)->Range(1 << 16, 1 << 26)->UseRealTime();
BENCHMARK(BM_Message)->ArgName("bytes")->Arg(4)->Range(1 << 16, 1 << 26)->UseRealTime();
BENCHMARK(BM_AllReduce)
    ->ArgNames({"bytes", "ranks"})
    ->ArgsProduct({{4, 1 << 10, 1 << 16, 1 << 20, 1 << 24}, {2, 4}})
    ->UseRealTime();

}  // namespace
}  // namespace megatron
