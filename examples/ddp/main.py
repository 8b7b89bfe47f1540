"""Train a network with and without poprun: the README of this folder walks through it.

python main.py --batch-size 64 --gradient-accumulation 8 --device-iterations 4
"""

import torch
from tqdm import tqdm
from utils import (
    SEED,
    TrainingModel,
    get_dataloader,
    get_dtype,
    parse_arguments,
    set_ipu_options,
)

import horovod.torch as hvd
import popdist
import poptorch

if __name__ == "__main__":
    if popdist.isPopdistEnvSet():
        hvd.init()
    args = parse_arguments()
    opts = set_ipu_options(args)
    print(args)
    # For the weights, and for how images are shifted and flipped.
    torch.manual_seed(SEED)
    train_dataloader = get_dataloader(args, opts)

    model = TrainingModel(args.precision).to(get_dtype(args.precision))
    model.train()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.003)
    poptorch_model = poptorch.trainingModel(model, opts, optimizer)

    for epoch in range(1, args.epochs + 1):
        loss_values = []
        accuracy_values = []
        bar = tqdm(
            train_dataloader,
            total=len(train_dataloader),
            disable=popdist.getInstanceIndex() != 0,
        )
        bar.set_description(f"[Epoch {epoch:02d}]")
        for data, labels in bar:
            outputs, losses, accuracies = poptorch_model(data, labels)
            loss = torch.mean(losses)
            accuracy = torch.mean(accuracies)
            if popdist.isPopdistEnvSet():
                loss, accuracy = hvd.grouped_allreduce([loss, accuracy], op=hvd.Average)
            loss_values.append(loss.item())
            accuracy_values.append(accuracy.item())
            bar.set_postfix({"loss": loss.item(), "acc": accuracy.item()})
        epoch_loss = sum(loss_values) / len(loss_values)
        epoch_accuracy = sum(accuracy_values) / len(accuracy_values)
        if popdist.getInstanceIndex() == 0:
            text = f"loss: {epoch_loss:.3f}, acc: {epoch_accuracy:.1f}"
            print(f"[Epoch {epoch:02d}] {text}", flush=True)

    train_dataloader.terminate()
    poptorch_model.destroy()
