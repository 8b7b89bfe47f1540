"""A data set of CIFAR-10's size that needs no download: its images are drawn.

Each image is drawn when it is asked for, as images of other data sets are decoded: that
takes much longer than a step of training does for it.
"""

import numpy as np
import torch

SIZE = 32
CLASSES = 10
SAMPLES = 50000
NOISE = 12.0

# The centres of the pixels of an image that reaches from -0.5 to 0.5.
Y, X = ((np.mgrid[0:SIZE, 0:SIZE] + 0.5) / SIZE - 0.5).astype(np.float32)


# Each returns how far points are from the centre, in units of the shape's size.


def disc(x, y):
    return np.hypot(x, y)


def square(x, y):
    return np.maximum(np.abs(x), np.abs(y))


def diamond(x, y):
    return 0.7 * (np.abs(x) + np.abs(y))


def triangle(x, y):
    return np.maximum(1.5 * np.abs(x) - 0.75 * y, 1.3 * y)


def cross(x, y):
    x, y = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(x, 3 * y), np.maximum(3 * x, y))


SHAPES = (disc, square, diamond, triangle, cross)


class Shapes(torch.utils.data.Dataset):
    """Images of five shapes, filled or in outline: ten classes of coloured images.

    An image depends on its index and the seed only.
    """

    def __init__(self, seed=0, transform=None, length=SAMPLES):
        self.seed, self.transform, self.length = seed, transform, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = np.random.default_rng((self.seed, index))
        label = int(random.integers(CLASSES))
        image = torch.from_numpy(draw(random, SHAPES[label // 2], label % 2 == 0))
        return image if self.transform is None else self.transform(image), label


def draw(random, shape, filled):
    """Draw a shape at a random place, with smooth edges, in random colours."""
    low, high = (-0.3, 0.24, -0.1, -0.1), (0.3, 0.36, 0.1, 0.1)
    angle, size, left, up = random.uniform(low, high).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = X - left, Y - up
    depth = size - shape(cos * x + sin * y, cos * y - sin * x)
    covered = np.clip(SIZE * depth + 0.5, 0, 1)
    if not filled:
        covered -= np.clip(SIZE * (depth - 0.4 * size) + 0.5, 0, 1)
    front, back = random.uniform(0, 255, (2, 3, 1, 1)).astype(np.float32)
    image = back + covered * (front - back)
    image += NOISE * random.standard_normal(image.shape, dtype=np.float32)
    return image.clip(0, 255).astype(np.uint8)
