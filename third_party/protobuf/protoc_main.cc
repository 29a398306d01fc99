// The protocol compiler with its C++ generator alone: protoc --cpp_out=FOLDER FILE.proto...
//
// Upstream's main() links the generators of eight more languages, most of what there is to compile.

#include "google/protobuf/compiler/command_line_interface.h"
#include "google/protobuf/compiler/cpp/generator.h"

int main(int argc, char** argv) {
  google::protobuf::compiler::CommandLineInterface command_line;
  google::protobuf::compiler::cpp::CppGenerator cpp_generator;
  command_line.RegisterGenerator("--cpp_out", "--cpp_opt", &cpp_generator,
                                 "Generate C++ header and source.");
  return command_line.Run(argc, argv);
}
