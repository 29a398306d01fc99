// Runs a program and the processes that it starts under ptrace, and injects a fault at the n-th
// system call that changes something below a directory: kills the process right after the call, or
// makes the call fail. It does what `strace --inject` does, for tests that go through every n, on
// x86-64 only.
//
//   SystemCallFault none;
//   const int n = RunWithFault(command, log, directory, none).calls;
//   for (int i = 0; i < n; ++i) RunWithFault(command, log, directory, {i, ENOSPC, true});
#ifndef MEGATRON_TRAIN_FAULT_TESTS_SYSTEM_CALL_FAULTS_H_
#define MEGATRON_TRAIN_FAULT_TESTS_SYSTEM_CALL_FAULTS_H_

#include <string>

#include "megatron/train/pretrain_harness.h"

namespace megatron {

struct SystemCallFault {
  int at = -1;           // index of the struck call, from 0; -1: no fault
  int error_number = 0;  // 0: the process is killed after the call
  bool lasting = false;  // every later call fails too, except those that remove
};

struct FaultedRun {
  Outcome outcome;
  int calls = 0;     // number of calls that change something below the directory
  std::string what;  // the system call that was struck, and the path
};

FaultedRun RunWithFault(const Arguments& command, const std::string& log,
                        const std::string& directory, const SystemCallFault& fault);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAULT_TESTS_SYSTEM_CALL_FAULTS_H_
