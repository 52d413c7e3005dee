"""What folders, tables and lists state: read as their people mean it, or one error that names what to write.

A row each: files as `known` writes them, and what is to be made of them. Datasets as they are published are in
`known_datasets`; these are the odd ones.
"""

import ast
import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage.errors import (
    ColabstageError,
    CorruptArchiveError,
    EmptySourceError,
    LayoutError,
    MissingDependencyError,
)
from colabstage.layouts.detect import detect_layout
from colabstage.options import SampleTable, Values, file_names, folders, parts, table_rows
from colabstage.trees.open import JoinedTree, open_tree
from tests.layouts.described import described
from tests.layouts.known import LABELME, PETS, WAV, YOLO_BOX, MemoryTree, coco, cvat, known, pets, rows, voc
from tests.layouts.readers import files
from tests.support.archives import zip_bytes
from tests.support.made_files import npy

Texts = dict[str, Any]
OPTIONS = {one.__name__: one for one in (file_names, folders, table_rows)}
SIX, FLAT = "images/{0..5}.jpg", "{a,b,c,d,e,f}.jpg"
ZIP = zip_bytes({"more/1.png": b""})
SAME_BOX = "0 0.34375 0.2734375 0.5625 0.390625"  # as that of `voc`


def read(paths: str, texts: Texts | None = None, layout: str = "'auto'") -> SampleTable:
    return detect_layout(MemoryTree(files(paths, texts)), eval(layout, dict(OPTIONS)))


def listed(**lists: str) -> Texts:
    """Lists of splits beside two classes: pie/{10000..10002}, ribs/{20000..20002}."""
    return {f"food/meta/{name}.txt": rows(*lines.split()) for name, lines in lists.items()}


FOOD = "food/images/pie/{10000..10002}.jpg food/images/ribs/{20000..20002}.jpg"
TRAIN, TEST = "pie/{10000,10001} ribs/{20000,20001}", "pie/10002 ribs/20002"

SPLIT_ROWS = "file_name,label\ntest/0.jpg,a\ntrain/0.jpg,b\ntrain/1.jpg,a\ntest/1.jpg,b\n"
ODD_ROWS = rows("file,label", "{0,0,1,2}.jpg,{a,a,a,b}", "none.jpg,a")

# fmt: off
READ: dict[str, tuple[Any, ...]] = {
    "one class with a folder in it": ("pets/cat/1.jpg pets/cat/more/2.jpg", {}, "image_folder; cat 2", "'image_folder'"),
    "a class called train": ("car/1.jpg ship/1.jpg train/1.jpg train/steam/2.jpg", {}, "image_folder; car 1, ship 1, train 2", "'image_folder'"),
    "photos of two cameras": ("{IMG,PXL}_2024010{1..9}.jpg", {}, "images; 18 without labels"),
    "an upper and a lower case": (SIX, {"l.csv": rows("file,case", "{0..5}.jpg,{upper,lower}")}, "table; lower 3, upper 3"),
    "facts of speakers, in a folder each": ("{ann,bob,eve}/{0,1}.jpg", {"l.csv": rows("speaker,accent", "{ann,bob,eve},{us,uk,us}")}, "table; uk 2, us 4"),
    "facts of scenes, in a folder each": ("{bay,city,fen}/{0,1}.jpg", {"l.csv": rows("scene,outdoor", "{bay,city,fen},{yes,no,yes}")}, "image_folder; bay 2, city 2, fen 2"),
    "masks by names and by a table": ("images/{0..4}.png masks/{0..3}.png masks/odd.png", {"l.csv": rows("image,mask", "images/{0..4}.png,masks/{0,1,2,3,odd}.png")}, "pairs; 5 masks of background, foreground"),
    "names of people before each": ("{ann,bob,eve}-{a,b,c}-x.jpg zoe-d-x.jpg", {}, "images; 10 without labels"),
    "a table of one name in each folder": ("s{1,2}/{0..2}.jpg", {"s1/labels.csv": rows("file,label", "{0..2}.jpg,{a,b}"), "s2/labels.csv": rows("file,label", "{0..2}.jpg,{b,a}")}, "table; a 3, b 3"),
    "two words in folders of grades": ("{1,2}/{aug,orig}_{0..2}.jpg", {}, "image_folder; 1 6, 2 6"),
    "numbered images are not in twos": ("{a,b}.jpg {a,b}_2.jpg", {}, "images; 4 without labels"),
    "one image called after another": ("{a,a_b,c,d}.jpg", {}, "images; 4 without labels"),
    "single letters in two cases": ("A/1.jpg a/2.jpg", {}, "image_folder; A 1, a 1"),
    "top right and top left": ("x/image_{tl,tr}/{0..3}.jpg", {}, "image_folder; image_tl 4, image_tr 4"),
    "rows numbered beside grades": (SIX, {"l.csv": rows("idx,path,grade", "{0..5},images/{0..5}.jpg,{0,1}")}, "table; 0 3, 1 3"),
    "a column called usage": (SIX, {"l.csv": rows("path,usage", "images/{0..5}.jpg,{casual,formal}")}, "table; casual 3, formal 3"),
    "a column of scenes": (SIX, {"l.csv": rows("path,scene", "images/{0..5}.jpg,{beach,city}")}, "table; beach 3, city 3"),
    "None and NA are words": (SIX, {"l.csv": rows("file,label", "{0..5}.jpg,{None,crack,NA}")}, "table; NA 2, None 2, crack 2"),
    "a split called train": (SIX, {"l.csv": rows("file,label,train", "{0..5}.jpg,{cat,dog},{1,1,0}")}, "table; train: cat 2, dog 2; test: cat 1, dog 1"),
    "words in a split called train": (SIX, {"l.csv": rows("file,label,train", "{0..5}.jpg,{cat,dog},{train,train,test}")}, "table; train: cat 2, dog 2; test: cat 1, dog 1"),
    "two tests are no splits": (SIX, {"l.csv": rows("file,label,test1,test2", "{0..5}.jpg,{cat,dog},{1,0,0},{0,1,0}")}, "table; cat 3, dog 3"),
    "a label called train": (SIX, {"l.csv": rows("file,train", "{0..5}.jpg,{1,1,0}")}, "table; 0 2, 1 4"),
    "a split that is not training": (SIX, {"l.csv": rows("file,label,is_training_image", "{0..5}.jpg,{cat,dog},{yes,yes,no}")}, "table; train: cat 2, dog 2; test: cat 1, dog 1"),
    "a measurement taken twice": (SIX, {"l.csv": rows("file,size", "{0,0,1,2}.jpg,{1.5,1.7,2.5,3.5}")}, "table; 4 numbers"),
    "lists by any paths": (FOOD, listed(train="x/food/images/pie/{10000,10001} ribs/{20000,20001}.jpg", test="./images/pie/10002.jpg ribs/20002"), "image_folder; train: pie 2, ribs 2; test: pie 1, ribs 1"),
    "folds": (FOOD, listed(train1=TRAIN, train2=TEST, test1=TEST), "image_folder; pie 3, ribs 3"),
    # Rows that were misread once.
    "rows held out of one folder": ("train/{0..5}.jpg", {"t.csv": rows("fname,label,is_valid", "{0..5}.jpg,{a,b},{False,False,True}")}, "table; train: a 2, b 2; valid: a 1, b 1"),
    "lists that data.yaml names": ("images/{0..5}.jpg", {"labels/{0..5}.txt": SAME_BOX, "data.yaml": "names: [a]\ntrain: used.txt\nval: rest.txt\n", "used.txt": rows("images/{0..3}.jpg"), "rest.txt": rows("images/{4,5}.jpg")}, "detection; train: 4 images, 4 boxes: a 4; val: 2 images, 2 boxes: a 2"),
    "the images of each class in a line": ("cat/{01a,02a}.jpg dog/{03a,04a}.jpg", {"l.json": {"cat": ["01a", "02a"], "dog": ["03a", "04a"]}}, "image_folder; cat 2, dog 2"),
    "boxes whose image is named twice in each row": ("images/{0..2}.jpg", {"b.csv": rows("path,file,label,xmin,ymin,xmax,ymax", "images/{0..2}.jpg,{0..2}.jpg,cat,{1,1,1,2,2,2},2,9,9")}, "table; 3 images, 6 boxes: cat 6"),
    "the other eye beside each": ("{a,b}{1,2}.jpg", {"l.csv": rows("image,fellow,label", "{a1,a2,b1,b2}.jpg,{a2,a1,b2,b1}.jpg,{x,x,y,y}")}, "table; x 2, y 2"),
    "classes called as parts: with and without": ("{with_mask,without_mask}/{0..3}.png", {}, "image_folder; with_mask 4, without_mask 4"),
    "classes called as parts: shapes by number": ("{label,cat,dog}/{1..3}.png", {}, "image_folder; cat 3, dog 3, label 3"),
    "classes called as parts: letters": ("{A,B,C}/{1..3}.png", {}, "image_folder; A 3, B 3, C 3"),
    "inputs of a test table": ("train/{a,b,c}.jpg test/{d,e}.jpg", {"train.csv": rows("file,age,weight", "{a,b,c}.jpg,{1,2},{3.5,4.5,3.5}"), "test.csv": rows("file,age", "{d,e}.jpg,2")}, "table; 3 numbers"),
    "boxes in a folder called as its download": ("images/{0,1}.png", {"labels_my-project_2024/{0,1}.txt": SAME_BOX}, "detection; 2 images, 2 boxes: 0 2"),
    "boxes in two formats that agree": ("images/{0..3}.png", {"annotations/{0..3}.xml": voc("cat", "dog"), "labels/{0,1}.txt": SAME_BOX}, "detection; 4 images, 8 boxes: cat 4, dog 4"),
    "an array in each file of classes": ("", {f"{split}/{kind}/{n}.npy": npy(np.arange(6)) for split in ("train", "test") for n, kind in enumerate(("cat", "dog"))}, "array_folder; train: cat 1, dog 1; test: cat 1, dog 1"),
    "numbers of images of patients": ("p{1,2}/{0..5}.png", {"t.csv": rows("image,brightness", "p1/{0..5}.png,{0..5}.5", "p2/{0..5}.png,{6..11}.5")}, "table; 12 numbers"),
    "numbers of images in folders of splits": ("{train,val}/{0..5}.png", {"t.csv": rows("image,brightness", "train/{0..5}.png,{0..5}.5", "val/{0..5}.png,{6..11}.5")}, "table; train: 6 numbers; val: 6 numbers"),
    "numbers of images in one folder": ("all/{0..5}.png", {"t.csv": rows("image,brightness", "all/{0..5}.png,{0..5}.5")}, "table; 6 numbers"),
    "a table of tabs that has commas": (SIX, {"t.tsv": rows("file,label", "{0..5}.jpg,{a,b}")}, "table; a 3, b 3"),
    "splits of a table before those of folders": ("{train,test}/{0,1}.jpg", {"metadata.csv": "file_name,label,split\ntest/0.jpg,a,train\ntrain/0.jpg,b,test\n"}, "table; train: a 1; test: b 1", "table_rows()"),
    "a table of the folder of one split": ("{train,test}/{0,1}.jpg", {"metadata.csv": "file_name,label\ntrain/0.jpg,b\ntrain/1.jpg,a\n"}, "table; a 1, b 1", "table_rows()"),
    "one folder alone": ("cat/1.jpg", {}, "images; 1 without labels"),
    # The lines that refusals name.
    "the outer folders": ("p{1,2}/{benign,malignant}/{0..3}.png", {}, "image_folder; p1 8, p2 8", "folders(level=1)"),
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "a test that a label or a split may be": (SIX, {"l.csv": rows("file,age,test", "{0..5}.jpg,{31,45,62},{no,no,yes}")}, r"Which of the columns 'age', 'test'"),
    "rows of splits among other folders": ("train/{0,1}.jpg test/{2,3}.jpg extra/{4,5}.jpg", {"l.csv": rows("file,label", "{0..5}.jpg,{cat,dog}")}, r"'test/2.jpg' is in 'train'.*'extra' is of no split"),
    **{f"a word that is {place}": (names, {}, rf"'cat', 'dog'\. If so: layout=file_names\(.* for what comes {place}\.") for place, names in (("first", "{cat,dog}-{4f2k,9d2k}.jpg"), ("last", "IMG_{01,02}_{cat,dog}.jpg"))},
    "a spelling": ("train/Dog/1.jpg test/dog/2.jpg {train,test}/eel/3.jpg", {}, r"'Dog'.*layout=\"image_folder\""),
    "patients and two findings": ("p1/{0..3}.jpg p2/{10..13}.jpg", {"t.csv": rows("path,patient_id,finding,grade", "{0..3}.jpg,p1,{cyst,none},{a,b}", "{10..13}.jpg,p2,{cyst,none},{a,b}")},
                                  r"Which of the columns 'finding', 'grade'"),
    "tables of many and of few": ("{00..11}.jpg", {"all.csv": rows("image,colour", "{00..11}.jpg,{red,blue}"), "few.csv": "image,label\n03.jpg,cat\n"}, r"Several tables.*table_rows\(table="),
    "labels beside an array in each file of classes": ("", {f"{name}.npy": npy(np.arange(6)) for name in ("cat/1", "dog/2", "cat/labels")}, r"labels\.npy", "'array_folder'"),
    "measurements beside classes": ("{cat,dog}/{0..5}.png", {"t.csv": rows("image,brightness", "cat/{0..5}.png,{0..5}.5", "dog/{0..5}.png,{6..11}.5")}, r"'t.csv'.*layout=\"table\" or layout=\"image_folder\""),
    "JSON beside each image": ("{cat,dog}/{0..3}.jpg", {"{cat,dog}/{0..3}.json": "{}"}, r"'dog/0\.json' and 7 more files"),
    "captions beside classes": ("red/a{0..3}.jpg blue/b{0..3}.jpg", {"captions.jsonl": "".join(f'{{"file_name": "a{n}.jpg", "text": "a dog"}}\n' for n in range(4))}, r"'captions.jsonl' leads to.*Texts are not read"),
    "an empty label in words": (SIX, {"l.csv": rows("path,label", "{0..5}.jpg,{a,b,,b,a,b}")}, r"^'l.csv' leads.*1 of 6 rows has no label in 'label' \(the first is that of 'images/2\.jpg'\).*Fill"),
    **{f"{missing} for nothing beside {word}": (SIX, {"l.csv": rows("file,label", f"{{0..5}}.jpg,{{{word},{missing},dog,{word},dog,dog}}")}, rf"\b1 of 6\b.*{missing}'")
       for word, missing in (*(("cat", one) for one in ("NaN", "nan", "<NA>", "N/A", "null")), ("cat|dog", "NaN"), ("1", "N/A"))},
    **{f"two spellings: {one}, {other}": (f"train/{{{one},eel}}/1.jpg test/{{{one},{other},eel}}/2.jpg", {}, "look like one in two spellings") for one, other in (("big~cat", "big_cat"), ("Cat", "cat"), ("cat", "~cat~"), ("ä", "a\u0308"))},
    "01 and 1": (SIX, {"l.csv": rows("path,label", "{0..5}.jpg,{01,1}")}, r"'01' and '1' look like one"),
    "a set that is no split": (SIX, {"l.csv": rows("path,label,set", "{0..5}.jpg,{a,b},{train,train,validierung}")}, r"'set' names splits and other values: 'validierung'"),
    **{f"masks beside images, called {end}": (f"x{{0..2}}.jpg x{{0..2}}{end}.png", {}, rf"come in twos.*image_masks\('{end}'\)") for end in ("_manual1", "_1stHO", "_label_ground-truth")},
    **{f"masks by tables: {said}": ("x/{0..3}.png z/{0..3}c.png y/{0..3}b.png", tables, said) for said, tables in (
        (r"'m\.csv': it has 'y/1b\.png' as the mask of 'x/0\.png', and 'l\.csv' 'y/0b\.png'", {"l.csv": rows("image,mask", "{0..3}.png,{0..3}b.png"), "m.csv": rows("image,mask", "{0..3}.png,{1,2,3,0}b.png")}),
        (r"'y/1b\.png' as the mask of 'x/0\.png', and 'l\.csv' 'y/0b\.png'", {"l.csv": rows("image,mask", "{0,0,1,1}.png,{0..3}b.png")}),
        (r"different files in 'before' and 'after'", {"l.csv": rows("before,after,mask", "x/{0..3}.png,{0..3}c.png,{0..3}b.png")}))},
    "paths in three columns": ("{s,t}/{v,w}/{0..2}.jpg", {"l.csv": rows("a,b,file,label", *(f"{a},{b},{{0..2}}.jpg,{{x,y}}" for a in "st" for b in "vw"))}, "may be 's/v/0.jpg'.*Write the folder before the name"),
    "a split that is none in test.csv": (SIX, {"train.csv": rows("file,label,part", "{0..3}.jpg,{a,b},train"), "test.csv": rows("file,label,part", "{4,5}.jpg,{a,b},holdout")}, r"'part' says which split.*'holdout'"),
    "most rows held out": (SIX, {"l.csv": rows("file,label,is_valid", "{0..5}.jpg,{cat,dog},{True,True,False}")}, r"would put 4 of 6 rows into the split 'valid'"),
    "two flags of splits": (SIX, {"l.csv": rows("file,label,is_valid,is_test", "{0..5}.jpg,{cat,dog},{1,0,0},{0,0,1}")}, r"names a split, and so does 'is_test'"),
    "a split of two names": (SIX, {"l.csv": rows("file,label,split", "{0..5}.jpg,{a,b},{train,train,train,train,valid,Validation}")}, r"in the splits 'valid', 'validation'"),
    "copies of the images": ("a/{0..3}.png b/{0..3}.png", {"l.csv": rows("path,label", "{0..3}.png,{a,b}")}, r"'0.png' in 'l.csv' may be 'a/0.png', 'b/0.png'"),
    "two labels of one image": (SIX, {"l.csv": rows("file,label", "{0,1,2,0}.jpg,{cat,dog}")}, r"'images/0\.jpg', one with the label 'cat' and one with 'dog'"),
    "a table against folders": ("cat/{1,2}.jpg dog/{3,4}.jpg", {"l.csv": rows("file,label", "{1,2,3,4}.jpg,{cat,dog,dog,dog}")}, r"'l\.csv'.*'cat/2\.jpg': 'dog', 'cat'.*\"table\" or layout=\"image_folder\""),
    "a table that exchanges the classes of folders": ("Cats/{0..3}.jpg Dogs/{4..7}.jpg", {"l.csv": rows("file,label", "{0..3}.jpg,dog", "{4..7}.jpg,cat")}, r"'l\.csv' and by folders \('Cats/0\.jpg': 'dog', 'Cats'\)"),
    "a split that is misspelt beside others": ("images/{train,test,vaild}/{0..3}.png", {"labels/{train,test,vaild}/{0..3}.txt": YOLO_BOX}, r"because 'images/vaild' is of no split"),
    "clips in folders of roles": ("", {"{labels,train}/1.wav": WAV}, r"'labels', 'train' are names of parts.*layout=\"audio\" takes"),
    "paths of another form": (SIX, {"l.csv": rows("file,label", "{00000,00001}.png,cat")}, r"The first row of 'l\.csv' is '00000.png', 'cat', and a file is called 'images/0\.jpg'"),
    "a list with a file of another class": (FOOD, listed(train=TRAIN, test="ribs/10002 ribs/20002"), r"^The list .*test\.txt' names 'ribs/10002'.*another folder.*layout='image_folder'"),
    "a file in two lists": (FOOD, listed(train=TRAIN, test="pie/{10000,10002} ribs/20002"), r"names 'food/images/pie/10000\.jpg', and so does"),
    "a list of ambiguous names": ("a/{pie,ribs}/{0..3}.jpg", {"a/train.txt": "0\n1\n", "a/test.txt": "2\n3\n"}, r"names '0', which is 'a/pie/0\.jpg' or 'a/ribs/0\.jpg'|names '2', which is"),
    "a list against a folder": ("{train,test}/pie/{10,11}.jpg {train,test}/ribs/{20,21}.jpg train/pie/12.jpg", {"test.txt": "pie/12\npie/10\n"}, r"test\.txt' names 'train/pie/12\.jpg', which is in the split 'train'"),
    "VOC's lists of other images": ("JPEGImages/{0..3}.png", {"Annotations/{0..3}.xml": voc("cat"), "ImageSets/Main/train.txt": rows("{10..13}")}, r"the lists in ImageSets/Main name none of its images"),
    "an image in two of VOC's lists": ("JPEGImages/{0..3}.png", {"Annotations/{0..3}.xml": voc("cat"), "ImageSets/Main/{train,val}.txt": rows("{0..2}")}, r"names 'JPEGImages/0\.png', and so does.*only=\['\*\*/\*\.png', '\*\*/\*\.xml'\]"),
    "boxes beside lists": (FOOD, {**listed(train=TRAIN, test=TEST), "food/boxes.txt": rows("{10000,10001,20000,20001} 60.0 27.0")}, r"'food/boxes\.txt' beside"),
    "two _classes.csv of masks": ("{s,t}/{0..3}.png {s,t}/{0..3}_mask.png", {f"{one}/_classes.csv": f"Pixel Value, Class\n0, ground\n1, {one}\n" for one in "st"}, r"_classes\.csv"),
    "labels in folders of classes": ("{cat,dog}/{0..3}.png", {"{cat,dog}/annotations/all.json": "[]"}, r"annotations/all\.json"),
    "classes in the names of files of subjects": ("s{1,2}/{wave,stop}_{0..2}.jpg", {}, r"begin with 'stop', 'wave'"),
    "folders of days": ("2024-01-0{1,2}/IMG_{0..2}.jpg", {}, r"'2024-01-01', '2024-01-02' are names of parts"),
    "classes in the names of clips": ("", {"{yes,no}_{0..2}.wav": WAV}, r"'no', 'yes'\. If so: layout=audio_clips\(pattern="),
    **{f"folders of {word}s": (f"{word}_{{1,2}}/{{0..3}}.png", {}, f"'{word}_1'.*layout=\"images\" reads the images without labels") for word in ("patient", "video", "seq", "batch")},
    "a split in two numbers": (FLAT, {"l.csv": rows("file,label,split", "{a,b,c,d,e,f}.jpg,{x,y},{0,0,1}")}, "'split'"),
    "boxes beside names of classes": ("{cat,dog}.{10000..10002}.jpg", {"b.txt": rows("{cat,dog}.{10000..10002}.jpg 60 27 325 304")}, r"'b\.txt'"),
    "Windows' copy": ("{cat,dog}/{0..3}.png cat~-~Copy/{4..6}.png", {}, "'cat - Copy'"),
    "an archive beside boxes": (FLAT, {"{a,b,c,d,e,f}.xml": voc("cat"), "more.tar.gz": "x"}, r"more\.tar\.gz"),
    "empty label files": ("images/{0..3}.jpg", {"labels/{0..3}.txt": "", "data.yaml": "names: [a]"}, "no box"),
    "a second folder of annotations": ("JPEGImages/{0..3}.png", {"Annotations/{0..3}.xml": voc("cat"), "Annotations_new/{0,1}.xml": voc("dog"), "Annotations_new/{2,3}.xml": voc("cat")}, r"'Annotations_new/0\.xml'"),
    "VOC and YOLO, other classes": ("images/{0..3}.png", {"annotations/{0..3}.xml": voc("cat"), "labels/{0,1}.txt": SAME_BOX, "labels/{2,3}.txt": SAME_BOX.replace("0", "1", 1)}, "labels/"),
    "VOC and YOLO, another place": ("images/{0..3}.png", {"annotations/{0..3}.xml": voc("cat"), "labels/{0..3}.txt": "0 0.8 0.8 0.1 0.1"}, r"only=\['\*\*/\*\.png', '\*\*/\*\.xml'\]"),
    "VOC and YOLO, further images": ("images/{0..3}.png images/{8,9}.png", {"annotations/{0..3}.xml": voc("cat"), **dict.fromkeys(("labels/{0..3}.txt", "labels/{8,9}.txt"), SAME_BOX)}, r"'images/8\.png': no box"),
    "two tools, each of half the images": ("{0..3}.png", {"{0,1}.json": {**LABELME, "imagePath": "x"}, "a.xml": cvat("{2,3}.png")}, r"CVAT's annotations \('a\.xml'\)"),
    "COCO and a table of other boxes": ("{0..3}.png", {"a.json": coco("{0..3}.png"), "b.csv": rows("file,class,xmin,ymin,xmax,ymax", "{0..3}.png,cat,5,6,40,30")}, r"'b\.csv' \('"),
    "names across folders": ("siteA/{cat,dog}.{0..2}.png siteB/{cat,dog}.{3..5}.png", {}, "the images' names"),
    "a table that is a row off, beside names": ("{cat,dog}.{0..2}.jpg", {"l.csv": rows("id,label", "{cat,dog}.{0..2}.jpg,{0,0,1,1,1,0}")}, r"by 'l\.csv' and by the images' names \('cat\.0\.jpg': '0', 'cat'\)"),
    "a table that is a row off, beside names with numbers": ("{cat,dog}_{00..05}.jpg", {"l.csv": rows("file,label", "cat_00.jpg,dog", "cat_{01..05}.jpg,Cat", "dog_{00..05}.jpg,dog")}, r"by 'l\.csv' and by the images' names \('cat_00\.jpg': 'dog', 'Cat'\)\. Take one of them: layout=\"table\" or layout=file_names"),
    "a record of each image, of other classes than the folders": ("{cat,dog}/{0..3}.jpg", {"l.xml": rows('<i f="{cat,dog}/{0..3}.jpg" is="{dog,cat}" at="1 2 3 4"/>')}, r"'l\.xml'"),
    "numbers that lead to images, beside names that lead to none": ("{0..5}.jpg", {"l.csv": rows("image,count,label", "scan_{a,b,c,d,e,f},{0..5},{cat,dog}")}, "names different files in 'count' and 'image'"),
    "pairs of images": ("{0..3}.jpg", {"l.csv": rows("image,pair,same", "{0,0,1,2,3}.jpg,{1,2,3,0,1}.jpg,{1,0,0,1,0}")}, "names different files in 'image' and 'pair'"),
    "a table of some of the training images": ("train/{cat,dog}/{0..3}.png train/{4..9}.png", {"train.csv": rows("file,label", "{4..9}.png,{cat,dog}")}, r"'train/cat/0\.png': nothing, 'cat'"),
    "a test of other classes than train": (FLAT, {"train.csv": rows("file,label", "{a,b,c,d}.jpg,{0,1}"), "test.csv": rows("file,label", "{e,f}.jpg,{cat,dog}")}, "'cat', 'dog'"),
    "a split in words that are none": (FLAT, {"l.csv": rows("file,emotion,Usage", "{a,b,c,d,e,f}.jpg,{0,1,2},{Training,Training,PublicTest}")}, "'PublicTest'"),
    "bands with the same odd numbers": ("B02/{03,07,11,18}.tif B03/{03,07,11,18}.tif", {}, r"parts\(x='B02', y='B03'\)"),
    "images beside an array": ("{0..3}.png", {"X.npy": npy(np.zeros((8, 4, 4, 3), np.uint8))}, r"'0\.png' and 3 more files"),
    "an archive beside an array": ("", {"X.npy": npy(np.zeros((8, 4, 4, 3), np.uint8)), "more.zip": ZIP}, r"more\.zip"),
}
NOTED: dict[str, tuple[Any, ...]] = {
    "one folder alone": ("cat/1.jpg", {}, r"'cat'.*layout='image_folder'"),
    # A list of names that somebody has would be shifted.
    **{f"folders of numbers that are not the labels: {said}": (f"{{{names}}}/a.jpg", {}, said, "'image_folder'")
       for names, said in (("1,2,10", "'1' is 0"), ("0,1,2,10", "'10' is 2"), ("01,02", "'01' is 0"))},
    "splits of folders": ("{train,test}/{0,1}.jpg", {"metadata.csv": SPLIT_ROWS}, r"Splits are the folders that the images are in: 'test', 'train'"),
    **{f"rows and images that do not meet: {said}": (SIX, {"t.csv": ODD_ROWS}, said, "table_rows()") for said in (r"1 row whose images are not there was left out \(first 'none\.jpg'\)", r"3 images that no row names were left out \(first '")},
    "columns that are not used": (SIX, {"l.csv": rows(",file,label,fold,age", "{0..5},{0..5}.jpg,{a,b},{0,1,2},{20..25}")}, r"Not used: the columns 'fold', 'age'"),
    **{f"masks by a table: {said}": ("x/{0..3}.png y/{0..5}b.png z/9.png", {"l.csv": rows("image,mask,camera", "{0..4}.png,{0..4}b.png,{a,b}")}, said) for said in ("1 row of 'l.csv' whose image or mask is not there", r"1 image without a mask was left out \(first 'z/9\.png'\)", "2 masks without an image", "'camera' is not used")},
    "a label stated twice": (SIX, {"l.csv": rows("file,label", "{0,1,2,0}.jpg,{cat,dog,cat,cat}")}, r"1 row names a file that another row names as well"),
    "numbers from 1": (SIX, {"l.csv": rows("file,label", "{0..5}.jpg,{1,2,3}")}, r"stay the numbers 1 to 3;"),
    "test images without labels": (SIX, {"train.csv": rows("id,label", "{0..3},{a,b}"), "test.csv": rows("id", "{4,5}")}, r"2 images of 'test.csv', which has no 'label', were left out"),
    "images that only a list has": ("JPEGImages/{0..3}.png", {"Annotations/{0..3}.xml": voc("cat"), "ImageSets/Main/train.txt": rows("{0..5}")}, r"2 names in 'ImageSets/Main/train.txt' match no file"),
    "a second set of labels": ("images/{00..05}.png", {"labels.csv": rows("file,label", "{00..05}.png,{a,b}"), "new.json": {f"0{n}.png": "b" for n in range(6)}}, r"'new\.json'"),
    "what is trained on": (FOOD, listed(test=TEST), r"The split 'train' has 4 images that no list names"),
}
# fmt: on


@pytest.mark.parametrize("case", READ)
def test_each_is_read_as_its_people_mean_it(case: str) -> None:
    paths, texts, found, *layout = READ[case]
    table = read(paths, texts, *layout)
    assert f"{table.layout}; {described(table)}" == found


@pytest.mark.parametrize("case", REFUSED)
def test_each_is_refused_with_what_to_write(case: str) -> None:
    """One line that names what competes, or is missing."""
    paths, texts, pattern, *layout = REFUSED[case]
    with pytest.raises(LayoutError, match=pattern) as caught:
        read(paths, texts, *layout)
    assert "\n" not in str(caught.value)
    assert re.search("layout|table|[Ff]ill|xpected|rite|[Nn]ame|folder|[Ss]ay|Put|Correct|Take|Give", str(caught.value))


@pytest.mark.parametrize("case", NOTED)
def test_each_is_noted(case: str) -> None:
    """What a loss or the author of a table may not expect."""
    paths, texts, pattern, *layout = NOTED[case]
    assert any(re.search(pattern, note) for note in read(paths, texts, *layout).notes)


def test_what_is_named_is_believed() -> None:
    """The line of an error, and a function of a caller."""
    paths, texts, _ = REFUSED["a table against folders"]
    for layout in ("'table'", "'image_folder'"):
        assert read(paths, texts, layout).classes == ("cat", "dog")
    paths, texts, _ = REFUSED["a list with a file of another class"]
    assert described(read(paths, texts, "'image_folder'")) == "pie 3, ribs 3"
    assert read("train_images/{0,1}.jpg test_images/2.jpg", {}, "file_names('^[a-z]+')").classes == ("test", "train")
    with pytest.raises(LayoutError, match=r"'no.csv'.*'l.csv'"):
        read(paths, {"l.csv": "path,label\n"}, "table_rows(table='no.csv')")
    paths, texts, _ = REFUSED["two labels of one image"]
    named = read(paths, texts, "table_rows(['label'])")
    assert list(named.keys) == ["images/0.jpg", "images/1.jpg", "images/2.jpg", "images/0.jpg#2"]
    for layout, reason in (("table", "no tables"), ("pairs", "no masks"), ("detection", "KITTI: .*YOLO: ")):
        with pytest.raises(LayoutError, match=reason):
            read("{0..3}.jpg", {"labels.json": "[]"}, repr(layout))


@pytest.mark.parametrize("saved_as", ["utf-8-sig", "utf-16", "latin-1"])
def test_lists_are_read_however_an_editor_saved_them(saved_as: str) -> None:
    """With Windows' mark, or in the letters of western Europe."""
    made = known("", FOOD, listed(train=TRAIN, test=TEST)).files
    saved = {
        name.replace("pie", "pâté"): text.decode().replace("pie", "pâté").encode(saved_as)
        for name, text in made.items()
    }
    assert described(detect_layout(MemoryTree(saved))) == "train: pâté 2, ribs 2; test: pâté 1, ribs 1"


def column(name: str, *cells: str) -> Texts:
    return {"l.csv": "\n".join([f"path,{name}", *(f"{number}.jpg,{cell}" for number, cell in enumerate(cells))])}


@pytest.mark.parametrize("base", [2**24, 2**62])
def test_whole_labels_stay_exact(base: int) -> None:
    """Two labels next to each other stay two, however large, and negative too."""
    numbers = [base, base + 1, -base - 1, base + 2, base + 3, -(2**63)]
    targets = read(SIX, column("label", *map(str, numbers))).targets
    assert isinstance(targets, Values)
    assert targets.values.dtype == np.int64
    assert targets.values.tolist() == numbers


def test_labels_that_would_merge_are_refused() -> None:
    """No 64-bit number, one of several columns, or written as floats; what stays apart is float32."""
    for texts, layout, pattern in (
        (column("label", *(str(2**63 - 1 + n % 2) for n in range(6))), "'table'", f"{2**63}, which does not fit"),
        (column("a,b", *(f"{2**24 + n},0.5" for n in range(6))), "table_rows(['a', 'b'])", "16777216 and 16777217"),
        (column("label", *(f"{2**53 + 2 * n}.0" for n in range(6))), "'table'", "the same number in float32"),
    ):
        with pytest.raises(LayoutError, match=pattern):
            read(SIX, texts, layout)
    targets = read(SIX, column("label", "0.1", "1e20", "16777217", "3", "4", "5")).targets
    assert isinstance(targets, Values)
    assert targets.values.dtype == np.float32


@pytest.mark.parametrize("layout", ["auto", "table", table_rows(table="train.csv")], ids=["auto", "table", "file"])
def test_archives_beside_a_table_are_named_with_the_line_that_keeps_their_labels(tmp_path: Path, layout: Any) -> None:
    """As competitions on Kaggle come: the archive alone would give images without labels."""
    (tmp_path / "train.csv").write_text("id,label\n1,cat\n2,dog\n3,cat\n")
    (tmp_path / "sample_submission.csv").write_text("id,label\n9,cat\n18,cat\n27,cat\n")
    for name in ("train", "test"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as file:
            for number in (1, 2, 3):
                file.writestr(f"{name}/{number if name == 'train' else 9 * number}.jpg", b"")
    opened = open_tree(tmp_path, spool=tmp_path / "spool")
    with opened, pytest.raises(EmptySourceError, match=r"'train\.csv'") as caught:
        detect_layout(opened, layout)
    source = ast.literal_eval(str(caught.value).rpartition("as the source: ")[2].removesuffix("."))
    assert source == [f"{tmp_path}", f"{tmp_path}/test.zip", f"{tmp_path}/train.zip"]
    parts = [(Path(one).stem, open_tree(Path(one), spool=tmp_path / "spool")) for one in source]
    with JoinedTree("several", parts) as joined:
        table = detect_layout(joined)
    assert (table.classes, list(table.keys)) == (("cat", "dog"), ["train/1.jpg", "train/2.jpg", "train/3.jpg"])


@pytest.mark.parametrize("name", ["photos.tar", "photos.tgz"])
def test_a_tar_in_a_folder_is_named(tmp_path: Path, name: str) -> None:
    """Although it was looked into, since it might be a shard; what is beside it may still be the dataset."""
    (tmp_path / "README.md").write_text("Photographs")
    with tarfile.open(tmp_path / name, "w" if name.endswith(".tar") else "w:gz") as tar:
        for member in ("cats/0.jpg", "dogs/1.jpg"):
            tar.addfile(tarfile.TarInfo(member), io.BytesIO())
    with pytest.raises(EmptySourceError, match=f"Give as the source: '{tmp_path}/{name}'"):
        detect_layout(open_tree(tmp_path, spool=tmp_path / "spool"))
    (tmp_path / "notes.xyz").write_text("of another kind")
    with pytest.raises(LayoutError, match="is not a WebDataset"):
        detect_layout(open_tree(tmp_path, spool=tmp_path / "spool"))


def test_a_parquet_that_cannot_be_read_is_no_reason_to_take_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged, or without pyarrow: nobody knows what it says of the images."""
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    found = MemoryTree(files(pets(), {"labels.parquet": "PAR1"}))
    with pytest.raises(CorruptArchiveError, match=r"'labels.parquet'"):
        detect_layout(found)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r'pyarrow.*layout="image_folder"'):
        detect_layout(found)
    assert described(detect_layout(found, "image_folder")) == PETS


def test_options_that_cannot_work_are_refused_before_anything_is_read() -> None:
    made: tuple[Callable[[], object], ...] = (lambda: folders(level=0), lambda: parts(x="A", y="A"))
    for wrong in made:
        with pytest.raises(ColabstageError, match="expected"):
            wrong()
    with pytest.raises(LayoutError, match="level=3"):
        read("a/x/1.png b/y/2.png", {}, "folders(level=3)")
