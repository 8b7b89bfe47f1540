"""Load the data as main.py does, and do nothing with it: what loading alone costs."""

from images import Shapes
from tqdm import tqdm
from utils import get_transform, parse_arguments, set_ipu_options

import popdist
import poptorch

if __name__ == "__main__":
    args = parse_arguments()
    opts = set_ipu_options(args)
    print(args)

    transform = get_transform(args.precision, args.eight_bit_io)
    train_dataset = Shapes(transform=transform)
    mode = (
        poptorch.DataLoaderMode.Async
        if args.async_dataloader
        else poptorch.DataLoaderMode.Sync
    )
    train_dataloader = poptorch.DataLoader(
        opts,
        train_dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        mode=mode,
    )

    for epoch in range(1, args.epochs + 1):
        bar = tqdm(
            train_dataloader,
            total=len(train_dataloader),
            disable=popdist.getInstanceIndex() != 0,
        )
        bar.set_description(f"[Epoch {epoch:02d}]")
        for _data, _labels in bar:
            continue

    train_dataloader.terminate()
