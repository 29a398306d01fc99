"""Megatron-LM's own datasets, from the package megatron-core, without its other parts, which need a GPU's libraries."""

import importlib.util
import os
import sys
import types


def _module(name, path=None, **names):
    made = types.ModuleType(name)
    if path:
        made.__path__ = [path]
    made.__dict__.update(names)
    sys.modules[name] = made


def install():
    """Makes `megatron.core.datasets` importable; empty modules stand for what it imports from elsewhere in the package."""
    root = importlib.util.find_spec("megatron.core").submodule_search_locations[0]
    _module("megatron", os.path.dirname(root))
    _module("megatron.core", root)
    _module("megatron.core.datasets", os.path.join(root, "datasets"))
    _module("megatron.core.utils", log_single_rank=lambda *a, **k: None, get_te_version=lambda: None)
    _module("megatron.core.parallel_state", get_virtual_pipeline_model_parallel_rank=lambda: None)
    _module("megatron.core.datasets.megatron_tokenizer", MegatronTokenizer=object)
