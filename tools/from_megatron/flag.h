// A flag of a command line with its values.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_FLAG_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_FLAG_H_

#include <string>
#include <vector>

namespace megatron {

struct Flag {
  std::string name;                 // without dashes: "lr-decay-style"
  std::vector<std::string> values;  // the words behind it
  std::vector<std::string> unset;   // for each value, what it needs and the script does not say
  int line = 0;
};

// Returns the text, without its end if it is long.
std::string Shortened(std::string text);

// Returns the flag as it is written, on one line: "--lr 1e-4".
std::string Shown(const Flag& flag);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_FLAG_H_
