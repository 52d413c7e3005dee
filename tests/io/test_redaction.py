"""What is shown contains no secret: addresses, and the messages of other libraries."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from fsspec import AbstractFileSystem, register_implementation
from hypothesis import given
from hypothesis import strategies as st

from colabstage import doctor, fetch_files
from colabstage.errors import ColabstageError, OptionError, SourceAccessError
from colabstage.sources.parse import LocalSource, parse_source
from tests.cli.conftest import (
    Run,
    run,  # noqa: F401 - a fixture
)
from tests.cli.test_outcome import ended_by
from tests.diagnose.nvidia_smi import smi  # noqa: F401 - a fixture
from tests.support.http_knobs import WebFault
from tests.support.http_server import WebServer

SECRET = "hunter2S3cr3tValue"
SIGNED = "s3://bucket/x?X-Amz-Signature=…&versionId=3&X-Amz-Security-Token=…"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


def show_address(address: str) -> str:
    """How an address is shown by a function that only takes paths; paths are shown unchanged."""
    try:
        source = parse_source(address)
        if isinstance(source, LocalSource):
            return source.label
    except OptionError:
        pass
    with pytest.raises(OptionError) as refused:
        doctor(address)
    shown = re.match(r"path=('.*?'|\".*?\") is an address", str(refused.value))
    assert shown, refused.value
    return str(ast.literal_eval(shown[1]))


@pytest.fixture
def hide_secrets(
    run: Run,  # noqa: F811
    smi: object,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], str]:
    """The command line's text for an unexpected error."""

    def told(text: str) -> str:
        done = ended_by(RuntimeError(text), run, monkeypatch)
        return done.stderr.removeprefix("colabstage: Unexpected RuntimeError: ").partition(". Run it again with")[0]

    return told


# Parameters that do not identify the object are hidden, whatever their names.
QUERY_NAMES = ["X-Amz-Signature", "AWSAccessKeyId", "Expires", "sig", "se", "access_token", "key", "session_id", "t"]


@pytest.mark.parametrize(
    "address",
    [
        f"https://ann:{SECRET}@example.org/a.zip",
        f"https://ann:pa@{SECRET}@example.org:8443/a.zip",
        f"https://[bad:{SECRET}@example.org/a.zip",
        f"https://example.org/a.zip#{SECRET}",
        f"https://example.org/a;jsessionid={SECRET}/b.zip",
        f"https://example.org/a.zip?x=1;token={SECRET}",
        f"https:///a.zip?token={SECRET}",
        f"simplecache::https://ann:{SECRET}@example.org/a.zip",
        f"kaggle://ann:{SECRET}@owner/name",
        f"az://container@account:{SECRET}/x",
        f"hf://datasets/ann:{SECRET}@owner/name",
        f"ftp://ann:{SECRET}/more@host/x",
        f"nosuch://ann:{SECRET}@host/x?sig={SECRET}",
        f"github://org:repo:{SECRET}@main/x",
        # What is between the colons looks like one of fsspec's chains.
        f"http://::a::{SECRET}@host/x.zip?X-Amz-Signature={SECRET}",
        *(f"https://example.org/a.zip?id=1&{name}={SECRET}&page=2" for name in QUERY_NAMES),
    ],
)
def test_no_secret_is_shown(hide_secrets: Callable[[str], str], address: str) -> None:
    """Neither passwords, anywhere in an address, nor any value of a query that does not identify the object.

    This includes the refusal of an unusable address, and the text that a source shows about itself.
    """
    assert SECRET not in show_address(address)
    assert SECRET not in hide_secrets(f"cannot reach {address}.")
    try:
        source = parse_source(address)
        # Without a scheme it is a local path, and paths are shown.
        shown = "" if isinstance(source, LocalSource) else f"{source!r} {source.label} {source.name}"
    except OptionError as error:
        shown = f"{error} {error.__cause__!r}"
    assert SECRET not in shown


@pytest.mark.parametrize("value", [JWT, "0123456789abcdef" * 4, "AbCdEf0123456789GhIjKl", "AbCdEf0123456789%2BGhI%3D"])
def test_values_that_look_like_tokens_are_hidden(value: str) -> None:
    assert show_address(f"https://example.org/a?file={value}&page=3") == "https://example.org/a?file=…&page=3"
    assert show_address(f"https://example.org/a?{value}") == "https://example.org/a?…"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        *(
            (address, address)
            for address in (
                "https://example.org/a.zip",
                "https://example.org/files?download=1&file=train-images-idx3-ubyte.gz&page=2",
                "https://example.org/user@v1/a@b.zip",
                "https://drive.google.com/uc?id=1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvW&export=download",
                "s3://bucket/a key with ?.zip",
                "ftp://host:21/a@b.zip",
                "abfs://container@account.dfs.core.windows.net/x",
                "github://org:repo@main/data",
                "/data/x?token=1",
            )
        ),
        ("s3://bucket/x?X-Amz-Signature=ab&versionId=3&X-Amz-Security-Token=cd", SIGNED),
        ("https://host/x?a=1&sig=abc%3D", "https://host/x?a=…&sig=…"),
        ("ftp://ann:s3cret@host:21/a@b.zip", "ftp://host:21/a@b.zip"),
        ("sftp://ann:pa/ss@host/x", "sftp://host/x"),
    ],
)
def test_what_finds_an_object_is_shown_and_what_opens_it_is_not(address: str, shown: str) -> None:
    assert show_address(address).removeprefix(f"{Path.cwd()}/") == shown


_WORDS = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@given(
    scheme=st.sampled_from(["http", "https", "ftp", "sftp", "s3", "oss", "webdav"]),
    user=_WORDS,
    password=_WORDS.map(lambda text: f"Zq{text}qZ"),
    query=st.dictionaries(st.sampled_from(QUERY_NAMES), st.just("ZqqueryqZ"), max_size=3),
    quoted=st.booleans(),
)
def test_a_login_is_never_shown_however_it_is_spelt(
    scheme: str, user: str, password: str, query: dict[str, str], quoted: bool
) -> None:
    """A password of any characters, correctly escaped or not, in a message or alone.

    If it is not escaped, a slash, question mark or hash in it ends what the rules for addresses call the server; then
    only the part after the last "@" can be shown, or nothing.
    """
    login = f"{quote(user, safe='')}:{quote(password, safe='')}" if quoted else f"{user}:{password}"
    if not quoted and set(login) & set("/?#\\") and scheme in ("http", "https"):
        login = login.translate(str.maketrans("", "", "/?#\\"))
    address = f"{scheme}://{login}@host/x.zip" + ("?" + "&".join(f"{k}={v}" for k, v in query.items()) if query else "")
    shown = show_address(address)
    assert "ZqqueryqZ" not in shown
    if quoted or not set(login) & set("/?#"):
        assert quote(password, safe="") not in shown
        assert password not in shown


@pytest.mark.parametrize(
    "text",
    [
        "GET https://host/x?X-Amz-Credential=S3CRET&X-Amz-Signature=S3CRET failed",
        "cannot reach ftp://ann:S3CRET@host/x",
        "Max retries with url: /c/b?sv=2020&sig=S3CRET (Caused by x)",
        "header Authorization: Bearer S3CRETS3CRET",
        "AccountKey=S3CRET;EndpointSuffix=core.windows.net",
        "{'token': 'S3CRET', 'a': 1}",
        "psql --password S3CRET -h host",
        "token hf_S3CRETS3CRET is not valid",
    ],
)
def test_a_message_is_cleaned(hide_secrets: Callable[[str], str], text: str) -> None:
    cleaned = hide_secrets(text)
    assert "S3CRET" not in cleaned
    assert cleaned[:3] == text[:3]


@pytest.mark.parametrize("text", ["code: 404 Not Found", "the key: train/x.zip does not exist", "status code=404"])
def test_plain_words_of_a_reason_stay(hide_secrets: Callable[[str], str], text: str) -> None:
    assert hide_secrets(text) == text


def test_a_long_message_is_cut_to_one_line_that_a_terminal_does_not_obey(hide_secrets: Callable[[str], str]) -> None:
    assert hide_secrets("a\n  b\tc") == "a b c"
    assert JWT not in hide_secrets(f"refused {JWT}")
    assert len(hide_secrets("x" * 5000)) < 400
    assert "\x1b" not in hide_secrets("\x1b[2Jgone") + show_address("https://host/\x1b[2Jx")


class Refusing(AbstractFileSystem):  # type: ignore[misc]
    """A service that repeats its arguments in its refusal."""

    protocol = "refusing"

    def info(self, path: str, **_: object) -> dict[str, object]:
        options = self.storage_options
        raise PermissionError(f"{options['key']} with {[*options['client_kwargs'].values()]} is refused")

    ls = find = info


def test_secrets_of_options_are_hidden_at_any_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a service's own text; what is not a secret stays."""
    options = {
        "key": "AKIA1234",
        "client_kwargs": {"aws_secret_access_key": "abcdef", "region_name": "eu-1"},
        "port": 21,
    }
    register_implementation("refusing", Refusing, clobber=True)
    monkeypatch.setenv("FSSPEC_REFUSING", json.dumps(options))
    with pytest.raises(ColabstageError) as refused:
        fetch_files("refusing://bucket/a.bin", str(tmp_path / "a.bin"), progress=False)
    said = str(refused.value)
    assert "eu-1" in said
    assert [secret for secret in ("AKIA1234", "abcdef") if secret in said] == []


@pytest.mark.parametrize(
    ("query", "is_signed"),
    [("X-Amz-Signature=0f", True), ("sv=2020&sig=0f", True), ("id=AbCdEf0123456789GhIjKl", False)],
)
def test_signed_addresses_are_known(tmp_path: Path, query: str, is_signed: bool) -> None:
    """They need no login, but must be recent."""
    with WebServer({}) as server:
        server.set_faults(WebFault(kind="status", status=403))
        with pytest.raises(SourceAccessError, match="get a fresh link" if is_signed else "a login") as refused:
            fetch_files(server.url("a.bin", query=query), str(tmp_path / "a.bin"), progress=False)
    assert ("signature" in str(refused.value)) == is_signed
