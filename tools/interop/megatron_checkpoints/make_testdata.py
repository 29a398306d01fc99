"""Makes tools/torch_checkpoint/testdata.  make_testdata.py DIRECTORY"""

import os
import sys

import torch

import dcp


def main():
    directory = sys.argv[1]
    counted = torch.arange(24, dtype=torch.float32)
    dcp.save(os.path.join(directory, "dcp"), {
        "decoder.layers.norm.weight": counted.reshape(4, 6),
        "decoder.layers.mlp.weight": counted.reshape(2, 3, 4).to(torch.bfloat16),
        "whole": counted[:5] / 8,
        "steps": torch.tensor([7], dtype=torch.int64),
        "decoder.layers.extra_state": None,
    }, {"num_layers": 2, "norm_epsilon": 1e-5, "swiglu": True},
        {"decoder.layers.norm.weight": (2, 2), "decoder.layers.mlp.weight": (2, 3, 1)})
    view = counted.reshape(4, 6)[1:3]
    torch.save({"half": counted[:3].to(torch.float16), "view": view,
                "parameter": torch.nn.Parameter(counted[:2]), "transposed": counted.reshape(4, 6).t(),
                "number": 3, "large": 1 << 70, "negative": -300, "text": "täxt",
                "list": [1, 2.5, None, True]}, os.path.join(directory, "objects.pt"))


main()
