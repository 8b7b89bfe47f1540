"""Options, loading and the network: what both programs of the tutorial need."""

import argparse
import os

import torch
from images import SAMPLES, Shapes

import popdist
import popdist.poptorch
import poptorch

CACHE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cache")
PADDING = 4
SEED = 2022


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train a network on drawn shapes.")
    parser.add_argument("--epochs", default=5, type=int, help="how often to see all")
    parser.add_argument("--images", default=SAMPLES, type=int, help="of the data set")
    parser.add_argument("--batch-size", default=64, type=int, help="of a micro-batch")
    parser.add_argument(
        "--gradient-accumulation",
        default=1,
        type=int,
        help="micro-batches of a replica in each step of the optimizer",
    )
    parser.add_argument(
        "--device-iterations",
        default=1,
        type=int,
        help="steps of the optimizer in each call of the model",
    )
    parser.add_argument(
        "--precision",
        default="16.16",
        choices=("16.16", "16.32", "32.32"),
        help="bits of the numbers in tensors, and in sums of products",
    )
    parser.add_argument(
        "--eight-bit-io",
        action="store_true",
        help="hand images to the model as bytes, and let it convert them",
    )
    parser.add_argument(
        "--async-dataloader",
        action="store_true",
        help="load data in a process of its own, ahead of the training",
    )
    parser.add_argument(
        "--num-workers", default=0, type=int, help="further processes that load data"
    )
    if not popdist.isPopdistEnvSet():
        parser.add_argument(
            "--replicas", default=1, type=int, help="copies of the model"
        )
    return parser.parse_args()


def set_ipu_options(args):
    if popdist.isPopdistEnvSet():
        opts = popdist.poptorch.Options()
        opts.showCompilationProgressBar(popdist.getInstanceIndex() == 0)
    else:
        opts = poptorch.Options()
        opts.replicationFactor(args.replicas)
    opts.randomSeed(SEED)
    opts.enableExecutableCaching(CACHE)
    opts.Training.gradientAccumulation(args.gradient_accumulation)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    opts.deviceIterations(args.device_iterations)
    if args.precision.endswith(".16"):
        opts.Precision.setPartialsType(torch.half)
    return opts


def get_dtype(precision):
    return torch.half if precision.startswith("16") else torch.float


class Transform:
    """What is done to each image: a random shift and flip, and numbers for bytes."""

    def __init__(self, dtype, eight_bit_io):
        self.dtype, self.eight_bit_io = dtype, eight_bit_io

    def __call__(self, image):
        down, right = torch.randint(2 * PADDING + 1, (2,)).tolist()
        padded = torch.nn.functional.pad(image, [PADDING] * 4)
        image = padded[:, down : down + image.shape[1], right : right + image.shape[2]]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return image if self.eight_bit_io else normalize(image, self.dtype)


def get_transform(precision, eight_bit_io):
    return Transform(get_dtype(precision), eight_bit_io)


def get_dataloader(args, opts):
    mode = (
        poptorch.DataLoaderMode.Async
        if args.async_dataloader
        else poptorch.DataLoaderMode.Sync
    )
    return poptorch.DataLoader(
        opts,
        Shapes(
            transform=get_transform(args.precision, args.eight_bit_io),
            length=args.images,
        ),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        mode=mode,
    )


def normalize(images, dtype):
    """Return bytes as numbers from -1 to 1."""
    # Converting bytes to half at once is slow on CPUs.
    return (images.float() / 127.5 - 1).to(dtype)


class TrainingModel(torch.nn.Module):
    """A small network on two IPUs, with its loss and its accuracy in per cent."""

    def __init__(self, precision, num_classes=10):
        super().__init__()
        self.dtype = get_dtype(precision)
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, kernel_size=4, stride=4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
        )
        classifier = torch.nn.Sequential(
            torch.nn.Linear(8 * 8 * 8, 32),
            torch.nn.ReLU(),
            torch.nn.Linear(32, num_classes),
        )
        self.classifier = poptorch.BeginBlock(classifier, ipu_id=1)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, images, labels):
        if images.dtype == torch.uint8:
            images = normalize(images, self.dtype)
        outputs = self.classifier(self.features(images))
        loss = self.loss(outputs, labels)
        _, predicted = torch.max(outputs, dim=1)
        accuracy = 100 * (predicted == labels).float().mean()
        return outputs, loss, accuracy
