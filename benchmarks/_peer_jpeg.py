"""FFCV, and ImageFolder in a DataLoader, over the same JPEGs; run by `read_jpeg` in the peers' environment.

Arguments: folder of class folders, scratch folder, images in a batch. Each line read is a contender, `FFCV` or
`ImageFolder`, and its number of workers; the answer is the images per second of one epoch.
"""

import json
import sys
import time
from pathlib import Path

SIZE = 224


def image_folder(folder: Path, batch: int, workers: int):  # type: ignore[no-untyped-def]  # runs without the project's types
    import torch
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.PILToTensor()])
    return torch.utils.data.DataLoader(
        ImageFolder(str(folder), steps), batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


def ffcv(folder: Path, scratch: Path, batch: int, workers: int):  # type: ignore[no-untyped-def]  # runs without the project's types
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Squeeze, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from torchvision.datasets import ImageFolder

    class Bytes:
        """JPEGs as they are: FFCV's own writer would compress them again."""

        def __init__(self) -> None:
            self.inner = ImageFolder(str(folder))

        def __len__(self) -> int:
            return len(self.inner)

        def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
            return self.inner[index]

    path = scratch / "images.beton"
    field = RGBImageField(write_mode="jpg", jpeg_quality=90)
    DatasetWriter(str(path), {"image": field, "label": IntField()}, num_workers=1).from_indexed_dataset(Bytes())
    pipelines = {
        "image": [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), ToTensor(), ToTorchImage()],
        "label": [IntDecoder(), ToTensor(), Squeeze()],
    }
    return Loader(
        str(path), batch, workers, os_cache=True, order=OrderOption.RANDOM, drop_last=False, pipelines=pipelines
    )


def main() -> None:
    """Answer until the input ends."""
    folder, scratch, batch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    made = {}
    for line in sys.stdin:
        name, workers = line.split()
        if line not in made:
            made[line] = (
                ffcv(folder, scratch, batch, int(workers))
                if name == "FFCV"
                else image_folder(folder, batch, int(workers))
            )
        start, count = time.perf_counter(), 0
        for x, _ in made[line]:
            count += len(x)
        print(json.dumps(count / (time.perf_counter() - start)), flush=True)


if __name__ == "__main__":
    main()
