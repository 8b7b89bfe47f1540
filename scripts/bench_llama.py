"""How many tokens a second a Llama generates on 2 instances: popdist next to gloo.

The model has 260 million parameters with random values in bfloat16. Hugging Face's
transformers splits its layers over the instances (`tp_plan="auto"`), which exchange two
sums in each layer for each token. The backends take turns, in jobs of their own. The
last column is what one process without any exchange does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

BACKENDS = ("popdist", "gloo")
ALONE = "alone"
PROMPT = 16
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONWARNINGS": "ignore",
    "TRANSFORMERS_VERBOSITY": "error",
}


def write_model(folder: str) -> None:
    logging.disable_progress_bar()
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=15,
        num_attention_heads=16,
        num_key_value_heads=16,
        vocab_size=32_000,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def generate(backend: str, folder: str, batch: int, tokens: int) -> None:
    """Generate on this instance; instance 0 prints how many tokens a second."""
    torch.set_num_threads(1)
    tp_plan = None
    if backend != ALONE:
        dist.init_process_group(backend)
        tp_plan = "auto"
    model = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, tp_plan=tp_plan
    )
    torch.manual_seed(1)
    prompt = torch.randint(32_000, (batch, PROMPT))
    attended = torch.ones_like(prompt)

    def call(count: int) -> float:
        start = perf_counter()
        model.generate(
            prompt,
            attention_mask=attended,
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
        )
        return batch * count / (perf_counter() - start)

    call(4)  # The first tokens also pay for the setup.
    speed = call(tokens)
    if backend == ALONE or dist.get_rank() == 0:
        print(json.dumps(speed), flush=True)
    if backend != ALONE:
        dist.destroy_process_group()


def run(backend: str, given: Sequence[str]) -> float:
    """Return how many tokens a second a job with a backend generates."""
    count = 1 if backend == ALONE else 2
    job = [sys.executable, "-m", "poprun", f"--num-instances={count}"]
    program = [f"--num-replicas={count}", sys.executable, __file__, backend, *given]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **QUIET}
    ran = subprocess.run(
        [*job, *program], env=environ, stdout=subprocess.PIPE, check=True
    )
    return float(ran.stdout)


def main(batches: Sequence[int], tokens: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        print("tokens/s, medians over the rounds; ratio with the least and the most")
        for batch in batches:
            speeds = [
                {
                    backend: run(backend, [folder, str(batch), str(tokens)])
                    for backend in (*BACKENDS, ALONE)
                }
                for _ in range(rounds)
            ]
            ratios = sorted(each["popdist"] / each["gloo"] for each in speeds)
            columns = (
                f"{name} {median(each[name] for each in speeds):.1f}"
                for name in (*BACKENDS, ALONE)
            )
            print(
                f"batch {batch}:",
                *columns,
                f"popdist / gloo {median(ratios):.2f}",
                f"({ratios[0]:.2f}-{ratios[-1]:.2f})",
                sep="  ",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in (*BACKENDS, ALONE):
        generate(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
        parser.add_argument("--tokens", type=int, default=48)
        parser.add_argument("--rounds", type=int, default=5)
        given = parser.parse_args()
        main(given.batches, given.tokens, given.rounds)
