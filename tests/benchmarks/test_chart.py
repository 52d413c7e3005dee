"""Bars out of the tables that benchmarks print."""

from xml.etree import ElementTree

from benchmarks._chart import Row, draw, find_tables, losses, lost_times

_OUTPUT = """\
2 cores; 3 s to start

4,000 of 256x256x3 uint8; 80 s in all

samples/s                               median    lowest   highest  ours x  setting
limit: np.take from memory              44,672    40,000    45,000    0.85  1 thread
make_loader                             38,230    30,000    39,000    1.00  auto
a <b> & c in 2 threads                     281       281       281  136.05  0 workers

ok    make_loader / limit: 0.85

cold rows, images/s                     median    lowest   highest
FFCV                                       344       344       344
make_loader                                172       172       172
"""


def test_tables_are_found_with_their_titles_and_figures() -> None:
    """Title, unit and every row come out as printed; text around the tables is no row."""
    first, second = find_tables(_OUTPUT)
    assert (first.title, first.unit) == ("4,000 of 256x256x3 uint8", "samples/s")
    assert (second.title, second.unit) == ("cold rows", "images/s")
    assert first.rows[0] == Row("limit: np.take from memory", 44672, 40000, 45000)
    assert [row.name for row in first.rows[1:]] == ["make_loader", "a <b> & c in 2 threads"]
    assert [row.name for row in second.rows] == ["FFCV", "make_loader"]


def test_whoever_was_quicker_is_named_but_not_a_limit() -> None:
    """Losing to a peer is told with the ratio; a bound is nobody's win."""
    assert losses(find_tables(_OUTPUT)) == ["FFCV: 2.00 times as fast as make_loader (cold rows)"]
    names = ("fit(to_keras)", "fit beside bare gathering", "fit from memory, by TensorFlow", "TFRecords of pixels")
    assert [Row(name, 1, 1, 1).kind for name in names] == ["ours", "bound", "bound", "peer"]


def test_bars_are_as_long_as_the_medians() -> None:
    """The picture is well-formed, its bars are in proportion, and names are text."""
    picture = ElementTree.fromstring(draw("peers", find_tables(_OUTPUT)))
    space = "{http://www.w3.org/2000/svg}"
    widths = {bar.get("class"): float(bar.get("width", "0")) for bar in picture.iter(f"{space}rect")}
    texts = {text.text for text in picture.iter(f"{space}text")}
    assert {"make_loader", "a <b> & c in 2 threads", "38,230", "cold rows"} <= texts
    last = [float(bar.get("width", "0")) for bar in picture.iter(f"{space}rect")][-2:]
    assert abs(last[0] / last[1] - 2) < 0.01
    assert set(widths) == {"bound", "ours", "peer"}


def test_whoever_took_less_time_is_named() -> None:
    """Neither what was tried counts, nor what did not finish, nor bytes."""
    output = """\
the disk may hold half

                           first batch    epoch 1    fetched
tried: Peer, 2 workers          1.00 s     1.00 s     1.00 x

colabstage                      2.50 s     6.50 s     1.00 x
Peer                            2.00 s          -     0.50 x  not finished: 1 of 1
"""
    assert lost_times(output) == ["Peer: first batch 1.25 times as fast as colabstage (the disk may hold half)"]
