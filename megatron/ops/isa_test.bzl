"""Tests of CPU code, run once per instruction set."""

load("//bazel:cc.bzl", "cc_test")

def isa_test(name, **kwargs):
    """NAME with the best instruction set of the machine and NAME_avx2 with AVX2."""
    cc_test(name = name, **kwargs)
    cc_test(
        name = name + "_avx2",
        env = {"MEGATRON_CPU_ISA": "avx2"},
        **kwargs
    )
