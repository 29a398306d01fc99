#include "megatron/comm/thread/run_ranks.h"

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace megatron {

absl::Status RunRanks(int size, const std::function<absl::Status(int, const ProcessGroup&)>& fn,
                      const ThreadWorldOptions& options) {
  ThreadWorld world(size, options);
  return RunRanks(&world, fn);
}

absl::Status RunRanks(ThreadWorld* world,
                      const std::function<absl::Status(int, const ProcessGroup&)>& fn) {
  const int size = world->size();
  std::vector<absl::Status> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = fn(rank, ProcessGroup(world->communicator(rank)));
      if (!results[rank].ok()) {
        world->Abort(absl::Status(results[rank].code(),
                                  absl::StrCat("rank ", rank, ": ", results[rank].message())));
      }
      world->Leave(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return world->status();
}

}  // namespace megatron
