// Keeps a weak symbol that other objects have too: isa_symbols_test must find it.

#include <vector>

namespace megatron::testing::MEGATRON_ISA {

void Append(std::vector<double>* values) { values->push_back(1.0); }

}  // namespace megatron::testing::MEGATRON_ISA
