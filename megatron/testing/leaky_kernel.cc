// Keeps a weak symbol that other objects may have too: isa_symbols_test must find it.

namespace megatron::testing {

template <typename T>
[[gnu::noinline]] T SharedByAll(T x) {
  return x + x;
}

namespace MEGATRON_ISA {

double Twice(double x) { return SharedByAll(x); }

}  // namespace MEGATRON_ISA
}  // namespace megatron::testing
