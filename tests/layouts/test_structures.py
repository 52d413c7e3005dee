"""Well-known datasets as they are shipped, from short descriptions: right, or one error that names the remedy."""

from __future__ import annotations

import functools
import itertools
import sys
import wave
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import CorruptArchiveError, LayoutError, MissingDependencyError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.table import Boxes, Values
from colabstage.options import file_names, table_rows
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.layouts.table import SampleTable

Files = dict[str, str]


def images(*forms: str, count: int = 4, start: int = 0) -> Files:
    """Empty images, `count` of each form."""
    return {form.format(i): "" for form in forms for i in range(start, start + count)}


def csv(header: str, *rows: str) -> str:
    """A table."""
    return "\n".join([header, *rows]) + "\n"


def rows(form: str, *cells: Any, count: int = 4, start: int = 0) -> tuple[str, ...]:
    """Rows of a form of a number and of one cell of each of `cells` in turn."""
    return tuple(
        form.format(i, *(column[(i - start) % len(column)] for column in cells)) for i in range(start, start + count)
    )


def build(root: Path, files: Files, saved_as: str = "utf-8") -> FolderTree:
    """A folder with these files, texts in this encoding."""
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding=saved_as)
    return FolderTree(root)


def told(found: SampleTable) -> dict[str, Any]:
    """What is said of each sample, by its key: its class where there are some, else its numbers."""
    assert isinstance(found.targets, Values)
    labels = found.targets.values.tolist()
    one_each = found.targets.values.ndim == 1 and found.classes
    return dict(zip(found.keys, (found.classes[y] if one_each else y for y in labels), strict=True))


APTOS: Files = {
    **images("train_images/{:06x}a.png"),
    **images("test_images/{:06x}b.png"),
    "train.csv": csv("id_code,diagnosis", *rows("{:06x}a,{}", "01")),
    "test.csv": csv("id_code", *rows("{:06x}b")),
    "sample_submission.csv": csv("id_code,diagnosis", *rows("{:06x}b,0")),
}
DOGS_CATS: Files = {
    **images("train/cat.{}.jpg", "train/dog.{}.jpg"),
    **images("test1/{}.jpg", start=1),
    "sampleSubmission.csv": csv("id,label", *rows("{},0", start=1)),
}
TINY: Files = {
    **images("train/n01/images/n01_{}.JPEG", "train/n02/images/n02_{}.JPEG", "val/images/val_{}.JPEG"),
    **images("test/images/test_{}.JPEG"),
    "train/n01/n01_boxes.txt": "\n".join(rows("n01_{}.JPEG\t0\t0\t62\t62")),
    "train/n02/n02_boxes.txt": "\n".join(rows("n02_{}.JPEG\t0\t0\t62\t62")),
    "val/val_annotations.txt": "\n".join(rows("val_{}.JPEG\t{}\t0\t0\t62\t62", ["n02", "n01"])),
    "wnids.txt": "n01\nn02\n",
    "words.txt": "n01\tcat\nn02\tdog\n",
}
HAM: Files = {
    **images("HAM10000_images_part_1/ISIC_{:07}.jpg"),
    **images("HAM10000_images_part_2/ISIC_{:07}.jpg", start=4),
    "HAM10000_metadata.csv": csv(
        "lesion_id,image_id,dx,dx_type,age,sex",
        *rows("HAM_{1},ISIC_{0:07},{2},histo,{0}0,male", "aabbccdd", ["bkl", "nv"], count=8),
    ),
    "hmnist_8_8_L.csv": csv("pixel0000,pixel0001,label", *rows("{},12,0", count=8)),
}
CELEBA: Files = {
    **images("img_align_celeba/img_align_celeba/{:06}.jpg", start=1),
    "list_attr_celeba.csv": csv("image_id,Smiling,Young", *rows("{:06}.jpg,{},1", ["-1", "1"], start=1)),
    "list_bbox_celeba.csv": csv("image_id,x_1,y_1,width,height", *rows("{:06}.jpg,1,2,3,4", start=1)),
    "list_eval_partition.csv": csv("image_id,partition", *rows("{:06}.jpg,{}", "0012", start=1)),
}
CHEST: Files = {
    **images("images_001/images/{:08}_000.png"),
    "Data_Entry_2017.csv": csv(
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age",
        *rows("{:08}_000.png,{},{},{},58", ["No Finding", "Mass|Edema"], "0101", "1122"),
    ),
    "BBox_List_2017.csv": csv("Image Index,Finding Label,Bbox [x", *rows("{:08}_000.png,Mass,3")),
    "train_val_list.txt": "\n".join(rows("{:08}_000.png", count=2)),
}
PETS: Files = {
    **images("images/Abyssinian_{}.jpg", "images/pug_{}.jpg"),
    **images("annotations/trimaps/Abyssinian_{}.png", count=1),
    "annotations/list.txt": "\n".join(rows("Abyssinian_{} 1 1 1")),
}
FASHION: Files = {
    **images("images/{}.jpg", start=15970),
    "styles.csv": csv(
        "id,gender,masterCategory", *rows("{},{},{}", ["Men", "Women"], ["Apparel", "Shoes"], start=15970)
    ),
    "images.csv": csv("filename,link", *rows("{0}.jpg,http://x/{0}", start=15970)),
}
GTSRB: Files = {
    **images("Train/0/a{}.png", "Train/1/b{}.png", "Test/{:05}.png", "Meta/{}.png"),
    "Train.csv": csv("Width,Height,ClassId,Path", *rows("29,30,0,Train/0/a{}.png"), *rows("29,30,1,Train/1/b{}.png")),
    "Test.csv": csv("Width,Height,ClassId,Path", *rows("29,30,{1},Test/{0:05}.png", "01")),
    "Meta.csv": csv("Path,ClassId,ShapeId", *rows("Meta/{0}.png,{0},1")),
}
ROBOFLOW_BOXES: Files = {
    **images("train/{}.jpg", "valid/{}.jpg"),
    **{
        f"{split}/_annotations.csv": csv(
            "filename,width,height,class,xmin,ymin,xmax,ymax", *rows("{}.jpg,64,48,{},5,6,40,30", ["dog", "cat"])
        )
        for split in ("train", "valid")
    },
}

RIGHT: dict[str, tuple[Files, dict[str, Any]]] = {
    "APTOS 2019": (APTOS, {f"train_images/{i:06x}a.png": "01"[i % 2] for i in range(4)}),
    "dogs-vs-cats": (DOGS_CATS, {f"train/{pet}.{i}.jpg": pet for pet in ("cat", "dog") for i in range(4)}),
    "Tiny ImageNet": (
        TINY,
        {f"train/{w}/images/{w}_{i}.JPEG": w for w in ("n01", "n02") for i in range(4)}
        | {f"val/images/val_{i}.JPEG": ["n02", "n01"][i % 2] for i in range(4)},
    ),
    "HAM10000": (
        HAM,
        {f"HAM10000_images_part_{1 + (i > 3)}/ISIC_{i:07}.jpg": ["bkl", "nv"][i % 2] for i in range(8)},
    ),
    "cassava": (
        {
            **images("train_images/{}.jpg", start=1000015157),
            "train.csv": csv("image_id,label", *rows("{}.jpg,{}", "01", start=1000015157)),
            "label_num_to_disease_map.json": '{"0": "Blight", "1": "Streak"}',
            **images("test_images/{}.jpg", count=1, start=2216849948),
            "sample_submission.csv": csv("image_id,label", "2216849948.jpg,4"),
        },
        {f"train_images/{1000015157 + i}.jpg": "01"[i % 2] for i in range(4)},
    ),
    "plant-pathology 2020": (
        {
            **images("images/Train_{}.jpg", "images/Test_{}.jpg"),
            "train.csv": csv("image_id,healthy,rust", *rows("Train_{},{},{}", "01", "10")),
            "test.csv": csv("image_id", *rows("Test_{}")),
            "sample_submission.csv": csv("image_id,healthy,rust", *rows("Test_{},0.5,0.5")),
        },
        {f"images/Train_{i}.jpg": [i % 2, 1 - i % 2] for i in range(4)},
    ),
    "GTSRB": (
        GTSRB,
        {f"Train/{i // 4}/{'ab'[i // 4]}{i % 4}.png": str(i // 4) for i in range(8)}
        | {f"Test/{i:05}.png": "01"[i % 2] for i in range(4)},
    ),
    "dog-breed": (
        {
            **images("train/{:032x}.jpg", "test/f{:031x}.jpg"),
            "labels.csv": csv("id,breed", *rows("{:032x},{}", ["pug", "boxer"])),
            "sample_submission.csv": csv("id,boxer,pug", *rows("f{:031x},0.5,0.5")),
        },
        {f"train/{i:032x}.jpg": ["pug", "boxer"][i % 2] for i in range(4)},
    ),
    "intel image classification": (
        images("seg_train/seg_train/sea/{}.jpg", "seg_train/seg_train/street/{}.jpg")
        | images("seg_test/seg_test/sea/1{}.jpg", "seg_test/seg_test/street/1{}.jpg", "seg_pred/seg_pred/2{}.jpg"),
        {
            f"seg_{split}/seg_{split}/{name}/{tens}{i}.jpg": name
            for (split, tens), name, i in itertools.product([("train", ""), ("test", "1")], ["sea", "street"], range(4))
        },
    ),
    "dataset/training_set/cats": (
        images("dataset/training_set/cats/{}.jpg", "dataset/training_set/dogs/{}.jpg")
        | images("dataset/test_set/cats/{}.jpg", "dataset/test_set/dogs/{}.jpg", "dataset/single_prediction/{}.jpg"),
        {
            f"dataset/{split}_set/{pet}/{i}.jpg": pet
            for split, pet, i in itertools.product(["training", "test"], ["cats", "dogs"], range(4))
        },
    ),
    "rock-paper-scissors": (
        images("rps/paper/{}.png", "rps/rock/{}.png", "rps-test-set/paper/t{}.png", "rps-test-set/rock/t{}.png"),
        {
            f"{folder}/{name}/{mark}{i}.png": name
            for (folder, mark), name, i in itertools.product(
                [("rps", ""), ("rps-test-set", "t")], ["paper", "rock"], range(4)
            )
        },
    ),
    "horse-or-human": (
        images("horse-or-human/horses/{}.png", "horse-or-human/humans/{}.png")
        | images("validation-horse-or-human/horses/{}.png", "validation-horse-or-human/humans/{}.png"),
        {
            f"{folder}/{name}/{i}.png": name
            for folder, name, i in itertools.product(
                ["horse-or-human", "validation-horse-or-human"], ["horses", "humans"], range(4)
            )
        },
    ),
    "brain tumour": (
        images("Training/glioma/{}.jpg", "Training/notumor/{}.jpg", "Testing/glioma/{}.jpg", "Testing/notumor/{}.jpg"),
        {
            f"{split}/{name}/{i}.jpg": name
            for split, name, i in itertools.product(["Training", "Testing"], ["glioma", "notumor"], range(4))
        },
    ),
    "CUB-200": (
        images("CUB/images/001.Albatross/A_{:04}.jpg", "CUB/images/002.Auklet/B_{:04}.jpg")
        | {
            "CUB/images.txt": "\n".join(rows("{0} 001.Albatross/A_{0:04}.jpg") + rows("{0} 002.Auklet/B_{0:04}.jpg")),
            "CUB/bounding_boxes.txt": "\n".join(rows("{} 60.0 27.0 325.0 304.0")),
        },
        {
            f"CUB/images/{name}/{mark}_{i:04}.jpg": name
            for mark, name in zip("AB", ["001.Albatross", "002.Auklet"], strict=True)
            for i in range(4)
        },
    ),
    "Food-101": (
        images("food-101/images/pie/100500{}.jpg", "food-101/images/ribs/200500{}.jpg")
        | {
            "food-101/meta/train.txt": "\n".join(rows("pie/100500{}", count=3) + rows("ribs/200500{}", count=3)),
            "food-101/meta/classes.txt": "pie\nribs\n",
        },
        {
            f"food-101/images/{name}/{tens}{i}.jpg": name
            for name, tens in (("pie", "100500"), ("ribs", "200500"))
            for i in range(4)
        },
    ),
    "a network drive's folders": (
        images("cat/{}.jpg", "dog/{}.jpg", ".Trash-0/files/{}.jpg", "@eaDir/{}.jpg", "$RECYCLE.BIN/{}.jpg")
        | images("cat/@eaDir/{}.jpg/thumb.jpg", ".hidden/{}.jpg"),
        {f"{name}/{i}.jpg": name for name in ("cat", "dog") for i in range(4)},
    ),
    "face masks": (
        images("with_mask/{}.jpg", "without_mask/{}.jpg"),
        {f"{name}/{i}.jpg": name for name in ("with_mask", "without_mask") for i in range(4)},
    ),
    "vehicles": (
        images("car/{}.jpg", "ship/{}.jpg", "train/{}.jpg"),
        {f"{name}/{i}.jpg": name for name in ("car", "ship", "train") for i in range(4)},
    ),
    "a table of scenes": (
        images("img/{}.png") | {"l.csv": csv("path,scene", *rows("img/{}.png,{}", ["beach", "city"]))},
        {f"img/{i}.png": ["beach", "city"][i % 2] for i in range(4)},
    ),
    "a table of numbers, the label first": (
        images("img/{}.png", count=6) | {"l.csv": csv("label,image", *rows("{1},{0}", "012", count=6))},
        {f"img/{i}.png": str(i % 3) for i in range(6)},
    ),
    "a table of numbers without a known name": (
        images("img/{}.png", count=6) | {"l.csv": csv("kind,number", *rows("{1},{0}", "012", count=6))},
        {f"img/{i}.png": str(i % 3) for i in range(6)},
    ),
}

WRONG: dict[str, tuple[Files, str]] = {
    "CelebA with four tables": (CELEBA, r"Several tables.*table_rows\(table='list_attr_celeba.csv'\)"),
    "ChestX-ray14": (CHEST, r"Several tables.*table_rows\(table='BBox_List_2017.csv'\)"),
    "fashion products": (FASHION, r"Several tables.*table_rows\(table='images.csv'\)"),
    "plant-pathology 2021": (
        images("train_images/{:016x}.jpg", count=6)
        | {"train.csv": csv("image,labels", *rows("{:016x}.jpg,{}", ["scab", "rust", "scab rust"], count=6))},
        r"table_rows\(separator=' '\)",
    ),
    "Oxford Pets": (PETS, r"'annotations', 'images'.*file_names\(PATTERN\)"),
    "panoptic": (
        images("panoptic_train2017/{:012}.png", "train2017/{:012}.jpg")
        | {
            "annotations/panoptic_train2017.json": '{"images": [{"id": 1, "file_name": "1.jpg"}], "categories": [],'
            '"annotations": [{"image_id": 1, "segments_info": [{"bbox": [1, 2, 3, 4]}]}]}'
        },
        r"'panoptic_train2017', 'train2017'.*layout=",
    ),
    "ISIC 2018": (
        images("ISIC2018_Task1_Input/ISIC_{:07}.jpg", "ISIC2018_Task1_GroundTruth/ISIC_{:07}_segmentation_x.png"),
        r"layout=",
    ),
    "LabelMe": (
        images("batch1/{}.jpg", "batch2/{}.jpg")
        | {f"batch{b}/{i}.json": '{"shapes": []}' for b in (1, 2) for i in range(4)},
        r"layout=",
    ),
    "PlantVillage": (
        images(*(f"pv/{form}/{name}/{{}}.jpg" for form in ("color", "grayscale") for name in ("scab", "rot"))),
        r"'rot', 'scab'.*one of the outer",
    ),
    "brain tumour, wrapped and not": (
        # One image differs from its copy: then neither is the other once more.
        images("brain_tumor_dataset/yes/{}.jpg", "brain_tumor_dataset/no/{}.jpg", "yes/{}.jpg", "no/{}.jpg")
        | {"yes/2.jpg": "a", "brain_tumor_dataset/yes/2.jpg": "b"},
        r"'brain_tumor_dataset' holds the folders 'no', 'yes'",
    ),
    "folders and a table of two other words": (
        images("x/{}.jpg", "y/1{}.jpg")
        | {"t.csv": csv("path,colour,size", *rows("{}.jpg,{},{}", ["red", "blue"], "ab"), *rows("1{}.jpg,red,a"))},
        r"Which of the columns 'colour', 'size'.*layout=\"image_folder\"",
    ),
    "folders of patients and a table of two findings": (
        images("p1/{}.jpg", "p2/1{}.jpg")
        | {
            "t.csv": csv(
                "path,patient_id,finding,grade",
                *rows("{}.jpg,p1,{},{}", ["cyst", "none"], "ab"),
                *rows("1{}.jpg,p2,{},{}", ["cyst", "none"], "ab"),
            )
        },
        r"Which of the columns 'finding', 'grade'",
    ),
    "folders of people and a table of them without a header": (
        images("ann/{}.jpg", "bob/1{}.jpg")
        | {"t.csv": csv("0.jpg,ann,young,3", *rows("1{}.jpg,bob,{},4", ["young", "old"]))},
        r"'t.csv' has 4 columns and no header",
    ),
    "a competition that asks for two columns": (
        images("{}.jpg")
        | {
            "train.csv": csv("image,colour,size", *rows("{}.jpg,{},{}", ["red", "blue"], "aabb")),
            "sample_submission.csv": csv("image,colour,size", "9.jpg,red,a"),
        },
        r"Which of the columns 'colour', 'size'",
    ),
    "tables of many and of few, neither called a label": (
        images("{:02}.jpg", count=12)
        | {
            "all.csv": csv("image,colour", *rows("{:02}.jpg,{}", ["red", "blue"], count=12)),
            "few.csv": csv("image,label", "03.jpg,cat"),
        },
        r"Several tables.*table_rows\(table=",
    ),
    "Covid radiography": (
        images("COVID/images/{}.png", "COVID/masks/x{}.png", "Normal/images/{}.png", "Normal/masks/x{}.png"),
        r"'images', 'masks' hold parts of each sample.*layout=file_names",
    ),
    "MVTec": (
        images(*(f"{thing}/{split}/good/{{}}.png" for thing in ("bottle", "cable") for split in ("train", "test"))),
        r"'test', 'train'.*one of the outer",
    ),
    "global wheat": (
        images("train/{:09x}.jpg") | {"train.csv": csv("image_id,width,bbox", *rows('{:09x},1024,"[1, 2, 3, 4]"'))},
        r"'bbox' holds boxes.*xmin, ymin, xmax, ymax",
    ),
    "LabelMe in folders": (
        images("cat/{}.jpg", "dog/{}.jpg") | {f"{pet}/{i}.json": "{}" for pet in ("cat", "dog") for i in range(4)},
        r"files such as this would be left out",
    ),
    "a list of classes that the folders do not have": (
        images("train/cat/{}.jpg", "train/dog/{}.jpg", "test/katze/{}.jpg", "test/hund/{}.jpg"),
        r"'test' \('hund', 'katze'\) has no class in common with 'train'",
    ),
    "captions beside classes": (
        images("red/a{}.jpg", "blue/b{}.jpg")
        | {"captions.jsonl": "\n".join(rows('{{"file_name": "a{}.jpg", "text": "a dog"}}'))},
        r"'captions.jsonl' leads to the images.*'text' holds texts",
    ),
    "a row with a cell too many": (
        images("img/{}.png") | {"l.csv": csv("path,label", *rows("img/{}.png,{}", ["a", "b", "a,x", "b"]))},
        r"3 cells in row 4 and 2 in the first.*quotes",
    ),
    "an empty label in words": (
        images("img/{}.png") | {"l.csv": csv("path,label", *rows("img/{}.png,{}", ["a", "b", "", "b"]))},
        r"1 of 4 rows has no label in 'label' \(the first is that of 'img/2\.png'\)",
    ),
    "an empty label in numbers": (
        images("img/{}.png") | {"l.csv": csv("path,label", *rows("img/{}.png,{}", ["1", "0", "", "0"]))},
        r"1 of 4 rows has no label in 'label'",
    ),
    "two columns that may be the label": (
        images("img/{}.png")
        | {"l.csv": csv("path,color,shape", *rows("img/{}.png,{},{}", ["red", "blue"], ["x", "x", "y"]))},
        r"'color', 'shape' is the label.*table_rows\(labels=",
    ),
    "two columns called labels": (
        images("img/{}.png")
        | {"l.csv": csv("path,label,class", *rows("img/{}.png,{},{}", ["a", "b"], ["x", "x", "y"]))},
        r"'label', 'class' is the label",
    ),
    "01 and 1": (
        images("img/{}.png") | {"l.csv": csv("path,label", *rows("img/{}.png,{}", ["01", "1"]))},
        r"'01' and '1', which are the same number",
    ),
    "a split that is none": (
        images("img/{}.png")
        | {"l.csv": csv("path,label,split", *rows("img/{}.png,{},{}", "ab", ["train", "holdout"]))},
        r"'split' names splits and other values: 'holdout'",
    ),
    "copies of the images": (
        images("a/{}.png", "b/{}.png") | {"l.csv": csv("path,label", *rows("{}.png,{}", "ab"))},
        r"'0.png' in 'l.csv' may be 'a/0.png', 'b/0.png'",
    ),
    "labels with a comma between them": (
        images("img/{}.png") | {"l.csv": csv("path,labels", *rows('img/{}.png,"{}"', ["a", "b", "a, b", "b"]))},
        r"such as 'a, b'.*table_rows\(separator=','\) for several",
    ),
    "folds": (images("fold1/{}.png", "fold2/{}.png", "fold3/{}.png"), r"'fold1', 'fold2', 'fold3' are names of parts"),
    "queries and a gallery": (
        images("query/{}.png", "gallery/{}.png", "train/{}.png"),
        r"'gallery', 'query', 'train' are names of parts of a dataset",
    ),
    "pictures before and after": (images("LR/{}.png", "HR/{}.png"), r"'HR', 'LR' are names of parts of a dataset"),
    "a table and masks": (
        images("images/{}.png", "masks/{}.png") | {"l.csv": csv("path,label", *rows("images/{}.png,{}", "ab"))},
        r'labels in a table and masks.*layout="table" or layout="pairs"',
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_each_is_read_right(tmp_path: Path, name: str) -> None:
    """The samples, and what is said of each, are those that the dataset's own page describes."""
    files, expected = RIGHT[name]
    assert told(detect_layout(build(tmp_path, files))) == expected


@pytest.mark.parametrize("name", WRONG)
def test_each_is_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    """The first sentences of one error say what competes, or is missing, and what to write."""
    files, says = WRONG[name]
    with pytest.raises(LayoutError, match=says) as caught:
        detect_layout(build(tmp_path, files))
    assert any(word in str(caught.value) for word in ("layout", "table", "Fill", "xpected", "Write"))


def test_the_remedies_work(tmp_path: Path) -> None:
    """What the errors say to write is read right."""
    found = detect_layout(build(tmp_path / "chest", CHEST), table_rows(table="Data_Entry_2017.csv"))
    assert (found.classes, found.groups) == (("Edema", "Mass", "No Finding"), ("1", "1", "2", "2"))
    found = detect_layout(build(tmp_path / "pets", PETS), file_names(r"images/([A-Za-z_]+)_\d+\.jpg$|$"))
    assert "pug" in found.classes
    found = detect_layout(build(tmp_path / "fashion", FASHION), table_rows(["gender"], table="styles.csv"))
    assert found.classes == ("Men", "Women")
    tree = build(tmp_path / "plants", WRONG["plant-pathology 2021"][0])
    assert detect_layout(tree, table_rows(separator=" ")).classes == ("rust", "scab")
    assert detect_layout(tree, table_rows(separator="")).classes == ("rust", "scab", "scab rust")
    tree = build(tmp_path / "pv", WRONG["PlantVillage"][0])
    assert detect_layout(tree, "image_folder").classes == ("color", "grayscale")
    with pytest.raises(LayoutError, match=r"table='nowhere.csv' is none of the tables.*'styles.csv'"):
        detect_layout(FolderTree(tmp_path / "fashion"), table_rows(table="nowhere.csv"))


def test_boxes_in_tables_of_splits_are_boxes(tmp_path: Path) -> None:
    """Roboflow's _annotations.csv: every row is a box of its file, in the folder of its split."""
    found = detect_layout(build(tmp_path, ROBOFLOW_BOXES))
    assert isinstance(found.targets, Boxes)
    assert found.targets.boxes.tolist() == [[5, 6, 40, 30]] * 8
    assert found.targets.columns["labels"].tolist() == [1, 0] * 4
    assert found.targets.offsets.tolist() == list(range(9))
    assert (found.classes, found.splits) == (("cat", "dog"), ("train",) * 4 + ("valid",) * 4)
    assert not found.targets.relative


def test_splits_that_cannot_be_used_are_left_out_with_a_note(tmp_path: Path) -> None:
    """Nobody has labelled the images that a competition keeps for its test."""
    notes = " ".join(detect_layout(build(tmp_path / "aptos", APTOS)).notes)
    assert "4 images of 'test.csv', which has no 'diagnosis', were left out." in notes
    notes = " ".join(detect_layout(build(tmp_path / "dogs", DOGS_CATS)).notes)
    assert "4 images of a test folder whose names give no class were left out" in notes
    found = detect_layout(build(tmp_path / "tiny", TINY))
    assert "4 images in no class folder were left out." in found.notes
    assert set(found.splits or ()) == {"train", "val"}
    broken = TINY | {"val/val_annotations.txt": TINY["val/val_annotations.txt"].replace("n02", "n99")}
    with pytest.raises(LayoutError, match=r"the class 'n99', but no folder has that name"):
        detect_layout(build(tmp_path / "broken", broken))


@pytest.mark.parametrize("layout", ["auto", "table"])
def test_a_tables_error_is_the_answer(tmp_path: Path, layout: str) -> None:
    """It is not hidden behind the folders' names, nor below what every other layout says."""
    tree = build(tmp_path, WRONG["an empty label in words"][0])
    with pytest.raises(LayoutError, match=r"^'l.csv' leads to the images.*Fill them in"):
        detect_layout(tree, layout)


def test_what_nearly_fits_is_all_that_is_said(tmp_path: Path) -> None:
    """In one line; each other layout says why it does not fit when it is asked for by name."""
    tree = build(tmp_path, images("batch1/{}.jpg", "batch2/{}.jpg") | {"batch1/0.json": "[]"} | {"labels.json": "[]"})
    with pytest.raises(LayoutError) as caught:
        detect_layout(build(tmp_path / "one", images("photos/{}.jpg") | {"labels.mat": ""}))
    assert "'labels.mat' may hold their labels" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Give layout= the name of a layout" in str(caught.value)
    for layout, says in (("table", "no tables"), ("pairs", "no masks"), ("detection", "KITTI: .*YOLO: ")):
        with pytest.raises(LayoutError, match=says):
            detect_layout(tree, layout)


def test_layouts_that_are_named_are_believed(tmp_path: Path) -> None:
    """A function of a caller, or the name of a layout, asks nothing of the rest of the tree."""
    tree = build(tmp_path, images("train_images/{}.jpg", "test_images/{}.jpg"))
    assert detect_layout(tree, "image_folder").classes == ("test_images", "train_images")
    assert detect_layout(tree, functools.partial(file_names(r"^[a-z]+"))).classes == ("test", "train")


def listed_tree(**lists: tuple[str, ...]) -> Files:
    """Food-101 with six images and the lists given, whose lines are written without folder and extension."""
    return images("food/images/pie/1000{}.jpg", "food/images/ribs/2000{}.jpg", count=3) | {
        f"food/meta/{name}.txt": "".join(f"{line}\n" for line in lines) for name, lines in lists.items()
    }


TRAIN, TEST = ("pie/10000", "pie/10001", "ribs/20000", "ribs/20001"), ("pie/10002", "ribs/20002")


@pytest.mark.parametrize(
    "form", ["{}", "{}.jpg", "images/{}.jpg", "./images/{}.jpg", "food/images/{}", "x/food/images/{}"]
)
def test_lists_that_name_the_images_of_splits_are_read(tmp_path: Path, form: str) -> None:
    """By paths from any folder on, with or without extensions; the samples stay those of the folders."""
    lists = {name: tuple(map(form.format, lines)) for name, lines in (("train", TRAIN), ("test", TEST))}
    tree = build(tmp_path, listed_tree(**lists) | {"food/meta/classes.txt": "pie\nribs\n"})
    found = detect_layout(tree)
    assert {key: split for key, split in zip(found.keys, found.splits or (), strict=True) if split == "test"} == {
        f"food/images/{name}.jpg": "test" for name in TEST
    }
    assert told(found) == told(detect_layout(tree, "image_folder"))
    assert detect_layout(tree, "image_folder").splits is None
    assert any("Splits are those of 'food/meta/test.txt' and 'food/meta/train.txt'" in note for note in found.notes)


@pytest.mark.parametrize("saved_as", ["utf-8-sig", "utf-16", "latin-1"])
def test_lists_are_read_however_an_editor_saved_them(tmp_path: Path, saved_as: str) -> None:
    """With Windows' mark, as its shell writes what is piped into a file, or in the letters of western Europe: lists of
    splits, and of the classes of a split whose images are in one folder."""
    lists = {name: tuple(line.replace("pie", "pâté") for line in lines) for name, lines in (("a", TRAIN), ("b", TEST))}
    plain = listed_tree(train=lists["a"], test=lists["b"])
    files = {name.replace("pie", "pâté"): text for name, text in plain.items()}
    found = detect_layout(build(tmp_path / "lists", files, saved_as))
    assert sum(split == "test" for split in found.splits or ()) == 2
    tiny = detect_layout(build(tmp_path / "tiny", TINY, saved_as))
    assert told(tiny) == told(detect_layout(build(tmp_path / "plain", TINY)))
    assert set(tiny.splits or ()) == {"train", "val"}


def test_bare_names_that_are_of_one_image_each_are_paths_too(tmp_path: Path) -> None:
    """As some write their lists."""
    bare = {name: tuple(line.split("/")[1] for line in lines) for name, lines in (("val", TEST), ("train", TRAIN))}
    found = detect_layout(build(tmp_path, listed_tree(**bare)))
    assert sorted(found.splits or ()) == ["train"] * 4 + ["val"] * 2


def test_what_no_list_names_is_said(tmp_path: Path) -> None:
    """It is left out where there is a list of what to train on, and is what to train on where there is none."""
    found = detect_layout(build(tmp_path / "both", listed_tree(train=TRAIN[:3], test=TEST)))
    assert sorted(found.splits or ()) == ["test"] * 2 + ["train"] * 3
    assert len(found.keys) == len(found.inputs) == len(found.targets or ()) == 5
    assert any("1 image that no list names was left out" in note for note in found.notes)
    found = detect_layout(build(tmp_path / "held", listed_tree(test=TEST)))
    assert sorted(found.splits or ()) == ["test"] * 2 + ["train"] * 4
    assert any("The split 'train' has 4 images that no list names" in note for note in found.notes)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (listed_tree(train=TRAIN, test=("ribs/10002", *TEST[1:])), r"test\.txt' names 'ribs/10002'.*another folder"),
        (listed_tree(train=TRAIN, test=(*TEST, TRAIN[0])), r"names 'food/images/pie/10000\.jpg', and so does"),
        (
            images("a/pie/{}.jpg", "a/ribs/{}.jpg") | {"a/train.txt": "0\n1\n", "a/test.txt": "2\n3\n"},
            r"names '2', which is 'a/pie/2\.jpg' or 'a/ribs/2\.jpg'",
        ),
        (
            images("train/pie/1{}.jpg", "train/ribs/2{}.jpg", "test/pie/3{}.jpg", "test/ribs/4{}.jpg")
            | {"test.txt": "pie/10\npie/30\n"},
            r"test\.txt' names 'train/pie/10\.jpg', which is in the split 'train'",
        ),
    ],
    ids=["another class", "twice", "ambiguous", "another split"],
)
def test_lists_that_contradict_are_errors(tmp_path: Path, files: Files, says: str) -> None:
    """They are named with the line; the layout's name overrules."""
    tree = build(tmp_path, files)
    with pytest.raises(LayoutError, match=rf"^The list .*{says}.*layout='image_folder'"):
        detect_layout(tree)
    assert detect_layout(tree, "image_folder").classes == ("pie", "ribs")


def test_other_evidence_counts_beside_lists_of_splits(tmp_path: Path) -> None:
    """A file that says more of the images is not forgotten over them."""
    tree = build(
        tmp_path,
        listed_tree(train=TRAIN, test=TEST)
        | {"food/boxes.txt": "\n".join(f"{line.split('/')[1]} 60.0 27.0 325.0 304.0" for line in TRAIN)},
    )
    with pytest.raises(LayoutError, match=r"'food/boxes\.txt' names them too"):
        detect_layout(tree)


@pytest.mark.parametrize("lists", [{"train": TRAIN}, {"train1": TRAIN, "train2": TRAIN[:3], "test1": TEST}])
def test_lists_of_splits_that_are_not_read_are_said(tmp_path: Path, lists: dict[str, tuple[str, ...]]) -> None:
    """One of what to train on alone does not say what the rest is for, and of folds nobody knows which is meant."""
    found = detect_layout(build(tmp_path, listed_tree(**lists)))
    assert found.splits is None
    assert any("list images of splits, and are not read" in note for note in found.notes)


def test_clips_of_sound_in_folders_are_doubted_as_images_are(tmp_path: Path) -> None:
    """A folder of a role is no class of sounds; the layout's name overrules."""
    for name in ("labels", "train"):
        place = tmp_path / "clips" / name / "1.wav"
        place.parent.mkdir(parents=True)
        with wave.open(str(place), "wb") as clip:
            clip.setparams((1, 2, 8000, 0, "NONE", ""))
            clip.writeframes(bytes(16))
    with pytest.raises(LayoutError, match=r"'labels', 'train' are names of parts.*layout=\"audio\" takes"):
        detect_layout(FolderTree(tmp_path / "clips"))
    assert detect_layout(FolderTree(tmp_path / "clips"), "audio").classes == ("labels", "train")


def test_a_class_may_be_called_as_a_part(tmp_path: Path) -> None:
    """Among other words."""
    tree = build(tmp_path, images("depth/{}.jpg", "height/{}.jpg"))
    assert detect_layout(tree).classes == ("depth", "height")


def test_a_damaged_parquet_is_told(tmp_path: Path) -> None:
    """Nobody knows what it says of the images."""
    tree = build(tmp_path, images("cat/{}.jpg", "dog/{}.jpg") | {"labels.parquet": "PAR1"})
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    with pytest.raises(CorruptArchiveError, match=r"'labels.parquet' is truncated, damaged.*Copy it again, or move"):
        detect_layout(tree)
    assert detect_layout(tree, "image_folder").classes == ("cat", "dog")


def test_a_table_that_needs_a_package_is_no_reason_to_take_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pyarrow nobody knows what a parquet says of the images."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    tree = build(tmp_path, images("cat/{}.jpg", "dog/{}.jpg") | {"labels.parquet": "PAR1"})
    with pytest.raises(MissingDependencyError, match=r'needs pyarrow.*layout="image_folder", which does without'):
        detect_layout(tree)
    assert detect_layout(tree, "image_folder").classes == ("cat", "dog")
