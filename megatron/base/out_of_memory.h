// The end of a process to which the system gives no memory, or no thread: a line that says what was
// asked for, what the process has and what its limit is, and an exit code.
#ifndef MEGATRON_BASE_OUT_OF_MEMORY_H_
#define MEGATRON_BASE_OUT_OF_MEMORY_H_

#include <cstdint>

namespace megatron {

inline constexpr int kAbortForWantOfMemory = -1;

// Makes this process end with the code where the system gives it no memory or no thread, be it by
// EndForWantOfMemory or by an exception that nobody catches: std::bad_alloc, or the
// std::system_error of a std::thread. Other exceptions end it as before. With
// kAbortForWantOfMemory, which is what holds at first, it aborts behind the line. Any thread may
// call, once the first call has returned.
void SetExitCodeForWantOfMemory(int exit_code);

// Ends this process, to which the system does not give `bytes` bytes for `use`.
[[noreturn]] void EndForWantOfMemory(int64_t bytes, const char* use);

}  // namespace megatron

#endif  // MEGATRON_BASE_OUT_OF_MEMORY_H_
