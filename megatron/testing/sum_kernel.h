#ifndef MEGATRON_TESTING_SUM_KERNEL_H_
#define MEGATRON_TESTING_SUM_KERNEL_H_

// The smallest kernel that is compiled per instruction set; it shows how cpu_kernel_library is
// used.

namespace megatron::testing {

namespace avx2 {
float Sum(const float* x, int n);
}
namespace avx512 {
float Sum(const float* x, int n);
}

}  // namespace megatron::testing

#endif  // MEGATRON_TESTING_SUM_KERNEL_H_
