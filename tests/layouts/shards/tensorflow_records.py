"""Writes TFRecord files with TensorFlow and prints what TensorFlow reads from them, as JSON. A process of its own:
importing TensorFlow takes seconds and hundreds of megabytes, and its threads stay."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


def feature(value: Any) -> Any:
    """One value as TensorFlow wraps it."""
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def example(number: int) -> bytes:
    """As the ImageNet script of TensorFlow writes it; classes count from 1."""
    pixels = np.random.default_rng(number).integers(0, 255, (30 + number, 40, 3), np.uint8)
    features = {
        "image/height": feature(30 + number),
        "image/colorspace": feature(b"RGB"),
        "image/class/label": feature(1 + number % 3),
        "image/class/text": feature(b"kind %d" % (number % 3)),
        "image/filename": feature(b"%d.jpg" % number),
        "image/encoded": feature(tf.io.encode_png(pixels).numpy()),
    }
    found = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(found.SerializeToString())


def read(path: Path, compression: str) -> list[list[Any]]:
    """Image hash, pixel sum and label of each record, as TensorFlow reads them."""
    kinds = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = []
    for record in tf.data.TFRecordDataset(str(path), compression_type=compression):
        parsed = tf.io.parse_single_example(record, kinds)
        image = parsed["image/encoded"].numpy()
        pixels = tf.io.decode_image(image).numpy()
        found.append([sha256(image).hexdigest(), sha256(pixels).hexdigest(), int(parsed["image/class/label"])])
    return found


FILES = {
    "train-00000-of-00002": range(5),
    "train-00001-of-00002": range(5, 9),
    "validation-00000-of-00001": range(9, 12),
}


def main(folder: Path) -> None:
    """Make two folders of three files each, one of them compressed."""
    found: dict[str, list[list[Any]]] = {"plain": [], "gzip": []}
    for kind, compression in (("plain", ""), ("gzip", "GZIP")):
        (folder / kind).mkdir()
        for name, numbers in FILES.items():
            path = folder / kind / name
            with tf.io.TFRecordWriter(str(path), compression) as writer:
                for number in numbers:
                    writer.write(example(number))
            found[kind] += read(path, compression)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
