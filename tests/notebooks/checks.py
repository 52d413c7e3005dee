"""What each notebook has come to, checked in a cell that its test adds: readers see results, not assertions."""

CHECKS = {
    "async_cuda": """
import threading

assert took < 0.85
for (x, y), (x_ahead, y_ahead) in zip(there, ahead, strict=True):
    assert torch.equal(x, x_ahead)
    assert torch.equal(y, y_ahead)
for _ in ahead:
    break
assert not [thread for thread in threading.enumerate() if thread.name.startswith("colabstage-cuda")]
""",
    "checkpoints": """
assert same or device == "cuda", "not one batch twice, not one left out"
assert any(newest.name in note for note in run.notes), "the newest version was cut short"
assert run.resumed_from is not None and run.resumed_from.name != newest.name
assert {row["session"] for row in run.history} == {1, 2, 3}
""",
    "detection": """
assert seen == data.splits["train"]
assert inside == boxes > 0
# What torchvision's detection models ask of their arguments in training.
assert all(image.shape == (3, HEIGHT, WIDTH) and image.is_floating_point() for image in images)
assert len(images) == len(answers) and all(set(one) >= {"boxes", "labels"} for one in answers)
assert all(one["boxes"].shape == (len(one["labels"]), 4) for one in answers)
assert all(one["boxes"].dtype == torch.float32 and one["labels"].dtype == torch.int64 for one in answers)
assert min(int(one["labels"].min()) for one in answers if len(one["labels"])) >= 1
""",
    "diagnose": """
assert report.findings
assert {rate.way for rate in comparison.rates} == {"source", "again", "local", "pack"}
assert before.verdict.bound == "input-bound"
assert before.verdict.stage in {"read", "decode", "transform"}
assert any("stage_dataset" in advice.argument for advice in before.advice)
assert after.samples_per_s > before.samples_per_s
""",
    "gpu_resident": """
def fingerprint(batches):
    labels, pixels = torch.zeros(len(data.classes), dtype=torch.int64), 0
    for x, y in batches:
        labels += torch.bincount(y, minlength=len(data.classes)).cpu()
        pixels += int((x * 255).round().long().sum())
    return labels.tolist(), pixels


assert fingerprint(resident) == fingerprint(batches_of_stock())
assert not torch.equal(orders[0], orders[1])
assert all(len(order) == data.splits["train"] for order in orders)
resident.close()
""",
    "hdf5_recipe": """
assert again.report.origin == "cache"
assert (images == first_x).all()
assert (labels == first_y).all()
assert seen == len(restored) == data.splits["train"]
""",
    "image_classification": """
assert len(truth) == data.splits[held_out]
assert accuracy > 0.85
""",
    "keras": """
import numpy as np

one_hot = data.to_keras(held_out, 64, shuffle=False, one_hot="auto")[0][1]
assert np.array_equal(one_hot.argmax(1), test[0][1]), "the same targets in another form"
assert accuracy > 0.8, "three epochs over the digits should tell most of them apart"
""",
    "larger_than_the_disk": """
figures = data.figures
assert peak <= limit < pack_bytes // 9
assert figures["evicted"] > pack_bytes // 2
assert len(labels) == 5
assert labels == rest, "the same batches, after their blocks were given back"
assert accuracy > 0.7, "one epoch over the digits should tell most of them apart"
data.part.close()
""",
    "many_machines": """
assert len(report.files) == SHARDS
assert same, "who packs does not show in what is packed"
assert len(everything) == len(alone) + 20
last = everything.read_batch(range(len(alone), len(everything)))[0]
mirrored = alone.read_batch(range(20))[0][:, :, ::-1]
assert sorted(x.tobytes() for x in last) == sorted(x.tobytes() for x in mirrored), "what is appended comes last"
every = everything.read_batch(range(len(everything)))[1]
assert np.array_equal(np.sort(np.concatenate(labels)), np.sort(every)), "every sample once"
""",
    "own_format": """
assert len(packed) == len(raw)
assert total == float(raw.x.sum())
for data in (plain, outlined):
    for key, (_, label) in zip(data["train"].reader.keys(range(50)), data["train"]):
        assert label == int(key.split("/")[-2]) % 2
""",
    "quickstart": """
assert again.report.origin == "local"
assert len(data[split]) == data.splits[split] > 0
assert accuracy > 0.7, "one epoch over the digits should tell most of them apart"
""",
    "segmentation": """
assert iou.mean() > 0.6
""",
    "tf_data": """
import numpy as np


def labels(dataset):
    return np.concatenate([y for _, y in dataset.as_numpy_iterator()])


again = data.to_tf_data("train", BATCH_SIZE, seed=0)
first, second = labels(again), labels(again)
assert np.array_equal(first, labels(data.to_tf_data("train", BATCH_SIZE, seed=0)))
assert np.array_equal(second, labels(data.to_tf_data("train", BATCH_SIZE, seed=0, epoch=1)))
assert np.array_equal(np.sort(first), np.sort(second)), "every sample once in each epoch"
assert accuracy > 0.7, "three epochs over the digits should tell most of them apart"
""",
}
