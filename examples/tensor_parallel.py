"""Generate with a transformer whose layers are shared out among the instances.

    poprun --num-instances 2 --num-replicas 2 python examples/tensor_parallel.py

Each instance holds a part of every layer's heads and of its hidden features, and adds
its part of the layer's result to those of the others: two all-reduces of bfloat16 a
layer, which is what limits this kind of inference on CPUs. `--backend gloo` runs the
same through torch's own backend.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.profiler import profile
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import popdist.torch  # noqa: F401 (it registers the backend)

SPLIT = {
    "query": ColwiseParallel,
    "key": ColwiseParallel,
    "value": ColwiseParallel,
    "output": RowwiseParallel,
    "up": ColwiseParallel,
    "gate": ColwiseParallel,
    "down": RowwiseParallel,
}
TOKENS = 128
COMMUNICATION = ("_c10d_functional::all_reduce", "_c10d_functional::wait_tensor")
TOLERANCE = {"bfloat16": 0.05, "float32": 1e-4}  # of the largest logit


class Layer(nn.Module):
    """Attention over what was seen, then a gated network: each adds to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.head = width // heads
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(2)])
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up, self.gate = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, past):
        normed = self.norms[0](x)
        # The last dimension is shared out: an instance has as many heads as fit.
        query, key, value = (
            part(normed).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if past:
            key, value = (
                torch.cat(pair, 2) for pair in zip(past, (key, value), strict=True)
            )
        past[:] = key, value
        seen = F.scaled_dot_product_attention(
            query, key, value, is_causal=x.size(1) > 1
        )
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Network(nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.logits = nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens, pasts):
        x = self.tokens(tokens)
        for layer, past in zip(self.layers, pasts, strict=True):
            x = layer(x, past)
        return self.logits(self.norm(x))


def make_network(options):
    torch.manual_seed(3)  # the same on every instance
    network = Network(options.layers, options.width, options.heads)
    return network.to(getattr(torch, options.dtype)).eval()


def share_out(network):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {name: style() for name, style in SPLIT.items()}
    for layer in network.layers:
        parallelize_module(layer, mesh, plan)


@torch.no_grad()
def generate(network, prompt, count, forced=None):
    """Return `count` tokens, their logits, and the seconds for each but the first.

    With `forced` tokens, the network continues with those and not with its own.
    """
    pasts = [[] for _ in network.layers]
    tokens, chosen, logits = prompt, [], []
    start = time.perf_counter()
    for step in range(count):
        if step == 1:
            start = time.perf_counter()
        last = network(tokens, pasts)[:, -1]
        logits.append(last.float())
        chosen.append(last.argmax(-1, keepdim=True))
        tokens = chosen[-1] if forced is None else forced[:, step : step + 1]
    seconds = (time.perf_counter() - start) / max(1, count - 1)
    return torch.cat(chosen, 1), torch.stack(logits), seconds


def share_of_communication(run):
    """Return which share of a run's time its all-reduces take, with the waiting."""
    with profile(use_kineto=False) as profiler:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
    spent = sum(
        event.cpu_time_total
        for event in profiler.key_averages()
        if event.key in COMMUNICATION
    )
    return spent / 1e6 / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="popdist")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    network = make_network(options)
    share_out(network)
    prompt = torch.randint(TOKENS, (options.batch, options.prompt))
    tokens, logits, _ = generate(network, prompt, options.tokens)  # warm
    dist.barrier()
    _, _, seconds = generate(network, prompt, options.tokens)
    share = share_of_communication(lambda: generate(network, prompt, options.tokens))

    everywhere = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, logits)
    if not all(torch.equal(one, logits) for one in everywhere):
        raise SystemExit("The instances' results differ.")
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} instances, backend {options.backend}: ", end="")
        print(f"{seconds * 1e3:.2f} ms a token, {share:.0%} of it communication")
        compare(options, prompt, tokens, logits)
    dist.barrier()
    dist.destroy_process_group()


def compare(options, prompt, tokens, logits):
    """Let one process see the same tokens, and compare what it thinks comes next."""
    whole = make_network(options)
    generate(whole, prompt, 2)  # warm
    _, expected, seconds = generate(whole, prompt, options.tokens, forced=tokens)
    difference = ((logits - expected).abs().max() / expected.abs().max()).item()
    print(f"one process: {seconds * 1e3:.2f} ms a token, {difference:.1e} apart")
    if not difference < TOLERANCE[options.dtype]:
        raise SystemExit("The instances' result is not that of one process.")


if __name__ == "__main__":
    main()
