// Writes commands as a POSIX shell reads them.
#ifndef MEGATRON_BASE_SHELL_COMMAND_H_
#define MEGATRON_BASE_SHELL_COMMAND_H_

#include <string>
#include <vector>

namespace megatron {

// Returns the words with spaces between them, each in quotes if a shell would change it otherwise.
std::string ShellCommand(const std::vector<std::string>& words);

}  // namespace megatron

#endif  // MEGATRON_BASE_SHELL_COMMAND_H_
