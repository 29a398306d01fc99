// Reads a .safetensors file and writes what was read: copy_safetensors FROM TO

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/safetensors_reader.h"
#include "megatron/checkpoint/safetensors_writer.h"
#include "tools/common/tool_main.h"

namespace megatron {
namespace {

absl::Status Copy(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) return absl::InvalidArgumentError("give two files");
  MEGATRON_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(arguments[0]));
  return WriteSafetensorsFile(PosixFileSystem(), arguments[1], file.header(),
                              [&](const SafetensorsTensor& tensor, std::string* bytes) {
                                for (const SafetensorsTensor& each : file.header().tensors) {
                                  if (each.name == tensor.name)
                                    *bytes = std::string(file.Bytes(each));
                                }
                                return absl::OkStatus();
                              });
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Copies a .safetensors file tensor by tensor.",
                           megatron::Copy);
}
