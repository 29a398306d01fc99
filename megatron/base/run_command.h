// Runs a user's command beside a program that must go on whatever the command does.
#ifndef MEGATRON_BASE_RUN_COMMAND_H_
#define MEGATRON_BASE_RUN_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megatron {

// Runs `command` as `/bin/sh -c command` does, with `input` on its standard input, and waits until
// it has ended. What it prints is read and thrown away, except for the first line, which an error
// quotes. The command is in a process group of its own, so that a terminal's signals do not reach
// it, and gets the default action of each signal.
//
// Returns kAborted for a code other than 0 or a signal. After `limit` the whole process group is
// killed, and kDeadlineExceeded returned.
absl::Status RunCommand(const std::string& command, absl::string_view input, absl::Duration limit);

}  // namespace megatron

#endif  // MEGATRON_BASE_RUN_COMMAND_H_
