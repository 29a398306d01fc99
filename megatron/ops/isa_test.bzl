"""Tests of CPU code, run once per instruction set."""

load("//bazel:cc.bzl", "cc_test")

def isa_test(name, bf16_products = False, deps = [], **kwargs):
    """NAME with the best instruction set of the machine and NAME_avx2 with AVX2.

    Args:
      name: the test.
      bf16_products: adds NAME_avx512_bf16 and NAME_amx_bf16, which skip everything on a processor
        without these.
      deps: of the test.
      **kwargs: further attributes of each cc_test.
    """
    cc_test(name = name, deps = deps, **kwargs)
    for isa in ["avx2"] + (["avx512_bf16", "amx_bf16"] if bf16_products else []):
        cc_test(
            name = name + "_" + isa,
            env = {"MEGATRON_CPU_ISA": isa},
            deps = deps + ([] if isa == "avx2" else ["//megatron/ops/cpu:skip_without_isa"]),
            **kwargs
        )
