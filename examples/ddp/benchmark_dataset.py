"""Load the data as main.py does, and do nothing with it: what loading alone costs."""

from tqdm import tqdm
from utils import get_dataloader, parse_arguments, set_ipu_options

import popdist

if __name__ == "__main__":
    args = parse_arguments()
    opts = set_ipu_options(args)
    print(args)
    train_dataloader = get_dataloader(args, opts)

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
