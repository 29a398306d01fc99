// Stack traces of all threads of this process, for reports of what went wrong: a signal asks each
// thread to walk its own stack.
//
// Functions have names if the program called absl::InitializeSymbolizer, else addresses.
#ifndef MEGATRON_BASE_THREAD_STACKS_H_
#define MEGATRON_BASE_THREAD_STACKS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace megatron {

struct ThreadStack {
  int id = 0;                       // the system's id of the thread
  std::string name;                 // the system's name of the thread, such as "pretrain_gpt"
  std::vector<std::string> frames;  // innermost first; empty if the thread did not answer
};

// Returns the stacks of all threads, the calling one included, in the order of their ids. A thread
// that does not answer within `patience`, because it is stopped, has no frames. Any thread may
// call; concurrent calls wait for each other.
std::vector<ThreadStack> AllThreadStacks(absl::Duration patience);

}  // namespace megatron

#endif  // MEGATRON_BASE_THREAD_STACKS_H_
