"""Prints the golden values of //megatron/optim:optimizer_test, as PyTorch computes them.

Ten steps over a matrix that decays and a vector that does not. Weights and gradients are small
binary fractions, so that both sides start from the same numbers.
"""

import torch

STEPS = 10


def initial(begin, count):
    return torch.tensor([((i * 3) % 7 - 3) / 4 for i in range(begin, begin + count)])


def gradient(step, begin, count):
    return torch.tensor([((i * 7 + step * 5) % 13 - 6) / 8 for i in range(begin, begin + count)])


def run(make_optimizer, clip):
    matrix = torch.nn.Parameter(initial(0, 6).reshape(2, 3))
    vector = torch.nn.Parameter(initial(6, 3))
    optimizer = make_optimizer(
        [{"params": [matrix], "weight_decay": 0.1}, {"params": [vector], "weight_decay": 0.0}])
    norms = []
    for step in range(STEPS):
        matrix.grad = gradient(step, 0, 6).reshape(2, 3)
        vector.grad = gradient(step, 6, 3)
        norms.append(torch.nn.utils.clip_grad_norm_([matrix, vector], clip).item())
        optimizer.step()
    return norms, torch.cat([matrix.detach().flatten(), vector.detach()]).tolist()


def main():
    makers = {
        "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8),
        "SGD": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    }
    for name, make_optimizer in makers.items():
        norms, weights = run(make_optimizer, clip=1.0)
        print(name, "norms  ", ", ".join("%.9g" % norm for norm in norms))
        print(name, "weights", ", ".join("%.9g" % weight for weight in weights))


if __name__ == "__main__":
    main()
