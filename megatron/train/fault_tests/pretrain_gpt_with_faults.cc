// pretrain_gpt with a fault in it, for tests: MEGATRON_TEST_FAULT="hang update 2 5" makes rank 2
// hang when it begins the sixth piece of work of the phase "update". The phase "end" comes after
// all others: only the end of the process is left to do. "no_memory" and "no_thread" throw what the
// standard library does where the system has no more of them. "flip", "nan" (once) and
// "flip_always", from that piece on, change a gradient of the rank, in the phase "reduce".

#include <linux/filter.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/train/pretrain_main.h"

namespace megatron {
namespace {

constexpr int kMostDescriptors = 1024;

// Makes this process receive nothing more from the network, as if its links were cut. It can still
// send.
void TurnDeaf() {
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &drop_all};
  for (int fd = 3; fd < kMostDescriptors; ++fd) {
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
  }
}

// Makes a call that no other rank makes.
void CallSomethingElse(const ProcessGroup& world) {
  ThreadPool pool(1);
  float values[7] = {};
  world.AllReduce(Tensor(values, DType::kFloat32, {7}), ReduceOp::kMin, Stream::Cpu(&pool));
}

class Fault {
 public:
  explicit Fault(const char* description) {
    std::istringstream text(description == nullptr ? "none none 0 0" : description);
    CHECK(text >> kind_ >> phase_ >> rank_ >> pieces_before_) << description;
  }

  void Hear(const PieceOfWork& piece) {
    // Processes whose ranks change have the number that they were launched with.
    const char* const launched = std::getenv("MEGATRON_RANK");
    const int rank = launched == nullptr ? piece.world.rank() : std::stoi(launched);
    if (rank != rank_ || Name(piece.phase) != phase_) return;
    if (kind_ == "flip_always" && pieces_before_ <= 0) ChangeAGradient(piece.buffers);
    if (pieces_before_-- != 0) return;
    std::fprintf(stderr, "the fault begins\n");
    if (kind_ == "flip" || kind_ == "nan") ChangeAGradient(piece.buffers);
    Strike(piece.world);
  }

  // Strikes in the phase "end" of a rank that is a process.
  void HearTheEnd() const {
    const char* const rank = std::getenv("MEGATRON_RANK");
    if (phase_ != "end" || rank == nullptr || std::to_string(rank_) != rank) return;
    std::fprintf(stderr, "the fault begins\n");
    Strike(ProcessGroup());
  }

 private:
  void ChangeAGradient(ParameterBuffers* buffers) const {
    CHECK(buffers != nullptr);
    const Bucket& bucket = buffers->buckets()[0];
    const Tensor gradients = buffers->Gradients(bucket, bucket.range);
    float& one = gradients.data<float>()[gradients.numel() / 2];
    uint32_t bits;
    std::memcpy(&bits, &one, sizeof(bits));
    bits = kind_ == "nan" ? 0x7fc00000 : bits ^ 1;
    std::memcpy(&one, &bits, sizeof(bits));
  }

  void Strike(const ProcessGroup& world) const {
    if (kind_ == "kill") raise(SIGKILL);
    if (kind_ == "stop") raise(SIGSTOP);
    if (kind_ == "deaf") TurnDeaf();
    if (kind_ == "mismatch") CallSomethingElse(world);
    if (kind_ == "no_memory") throw std::bad_alloc();
    if (kind_ == "no_thread")
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    while (kind_ == "hang") pause();
    volatile uint64_t turns = 0;
    while (kind_ == "spin") turns = turns + 1;
  }

  std::string kind_, phase_;
  int rank_ = 0;
  int pieces_before_ = 0;  // pieces of rank_'s work in phase_ before the fault
};

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  megatron::Fault fault(std::getenv("MEGATRON_TEST_FAULT"));
  const int code =
      megatron::PretrainMain({"pretrain_gpt", "GPT", "gpt", "gpt_demo",
                              [&](const megatron::PieceOfWork& piece) { fault.Hear(piece); }},
                             argc, argv);
  fault.HearTheEnd();
  return code;
}
