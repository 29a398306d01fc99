// The file descriptors of stdin, stdout and stderr.
#ifndef MEGATRON_BASE_STANDARD_STREAMS_H_
#define MEGATRON_BASE_STANDARD_STREAMS_H_

namespace megatron {

// Opens /dev/null in place of each of the three that the caller of the program has closed, so that
// no file or socket gets its number and, with it, what the program prints. Reading the one in place
// of stdin fails, and so does writing to the others, as if they were closed. To be called before
// anything is opened.
void KeepStandardStreams();

}  // namespace megatron

#endif  // MEGATRON_BASE_STANDARD_STREAMS_H_
