"""Sizes, rates and times as people write them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from colabstage.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# How many names of a list, such as class names, are shown.
NAMES_SHOWN = 12
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
}


def format_bytes(count: float) -> str:
    """Write a number of bytes with a decimal unit and three figures.

    >>> format_bytes(1_234_567), format_bytes(999)
    ('1.23 MB', '999 B')
    """
    value = float(count)
    for unit in _DECIMAL:
        if abs(value) < 999.5 or unit == _DECIMAL[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.95 else f"{value:.3g} {unit}"


def parse_bytes(text: str | int, name: str = "", *, may_be_zero: bool = False) -> int:
    """Read a size: a number of bytes, or a number with a decimal (kB, MB, …) or binary (KiB, MiB, …) unit.

    >>> parse_bytes("1.5 GB")
    1500000000
    """
    match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", str(text))
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        given = f"{name}={text!r}" if name else repr(text)
        msg = f"{given} is not a size. Write a number with a unit, for example '500 MB' or '1.5GiB'."
        raise OptionError(msg)
    # A float would lose the last bytes of a petabyte.
    count = round(Fraction(match[1]) * factor)
    if name and not count and not may_be_zero:
        # In other software 0 means "no limit"; here the size would be a divisor.
        msg = f"{name}={text!r} leaves no room at all. Leave it out, or write a number with a unit, as '500 MB'."
        raise OptionError(msg)
    return count


def parse_sides(text: str) -> tuple[int, int]:
    """Read a height and width in pixels from an option or form field: `256x320`, `256,320`, or `256` for a square."""
    sides = text.lower().replace(",", "x").split("x")
    if len(sides) > 2 or not all(side.strip().isdecimal() for side in sides):
        msg = f"{text!r} is not a size. Write HEIGHTxWIDTH in pixels, for example 256x256."
        raise OptionError(msg)
    return int(sides[0]), int(sides[-1])


def parse_fractions(text: str) -> dict[str, float] | list[float] | float:
    """Read the fractions of splits from a command-line or form field: `train=0.8,test=0.2`, `0.8,0.2`, or `0.8`."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    try:
        fractions = [float(fraction) for _, _, fraction in pairs]
    except ValueError:
        fractions = []
    if fractions and not any("=" in part for part in text.split(",")):
        return fractions if len(fractions) > 1 else fractions[0]
    if not fractions or not all(names) or len(set(names)) < len(names):
        msg = f"{text!r} gives no fractions. Write NAME=FRACTION,… with each name once: train=0.8,dev=0.1,test=0.1."
        raise OptionError(msg)
    return dict(zip(names, fractions, strict=True))


def format_duration(seconds: float) -> str:
    """Write a time span the way people say it.

    >>> [format_duration(t) for t in (0.00042, 0.0042, 0.5, 42.0, 192.0, 7260.0, 3456000.0)]
    ['420.0 µs', '4.2 ms', '0.50 s', '42.0 s', '3 min 12 s', '2 h 1 min', '40 days 0 h']
    """
    if 0 < seconds < 0.00099995:
        return f"{seconds * 1_000_000:.1f} µs"
    if seconds < 0.09995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    days, left = divmod(hours, 24)
    return f"{format_count(days, 'days')} {left} h" if days else f"{hours} h {minutes} min"


def format_count(count: int, things: str) -> str:
    """Write how many there are of `things`, a regular plural.

    >>> format_count(1797, "files"), format_count(1, "files"), format_count(1, "batches")
    ('1,797 files', '1 file', '1 batch')
    """
    if count == 1:  # "sizes" and "bytes" lose only the "s"
        things = things.removesuffix("es" if things.endswith(("sses", "ches", "shes", "xes")) else "s")
    return f"{count:,} {things}"


_OF_ONE = {"are": "is", "have": "has", "were": "was", "match": "matches"}


def counted(count: int, things: str, verb: str, *, of: int | None = None, which: str = "") -> str:
    """Write how many of `things` there are, and which, as a subject with its verb, which is given in the plural.

    >>> counted(2, "boxes", "are"), counted(1, "images", "have", of=7, which="that were examined")
    ('2 boxes are', '1 of 7 images that were examined has')
    """
    subject = format_count(count, things) if of is None else f"{count:,} of {format_count(of, things)}"
    return f"{subject}{f' {which}' if which else ''} {_OF_ONE[verb] if count == 1 else verb}"


def left_out(count: int, things: str, which: str = "") -> str:
    """Write that some of `things` were left out, and which.

    >>> left_out(1, "images", "without a mask"), left_out(2, "clips")
    ('1 image without a mask was left out', '2 clips were left out')
    """
    return f"{counted(count, things, 'were', which=which)} left out"


def format_names(first: Sequence[str], count: int) -> str:
    """Write how many names there are, the first ones, and how many follow.

    >>> format_names(["cat", "dog"], 2), format_names(["cat", "dog"], 1000)
    ('2: cat, dog', '1,000: cat, dog and 998 more')
    """
    more = count - len(first)
    return f"{count:,}: {', '.join(first)}{f' and {more:,} more' if more else ''}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Write the first few names, each in quotes, and how many follow.

    >>> listed(["cat", "dog"]), listed(["cat", "dog", "owl"], 2)
    ("'cat', 'dog'", "'cat', 'dog' and 1 more")
    """
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def format_rate(amount: float, seconds: float, unit: str) -> str:
    """Write a rate: bytes with a scaled unit, other things with a noun.

    >>> format_rate(50_000_000, 2.0, "B"), format_rate(3000, 2.0, "images")
    ('25 MB/s', '1,500 images/s')
    """
    rate = amount / seconds if seconds > 0 else 0.0
    if unit == "B":
        return f"{format_bytes(rate)}/s"
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s"


# Passwords, tokens and signatures are hidden in everything that is shown. One rule says what may be shown, because
# services invent names for their keys faster than any list grows: of an address the server, the path, the *names* of
# parameters, and the values of a few that only identify an object. In other software's text every address follows the
# rule, and values with a name that suggests a secret are hidden.

HIDDEN = "…"

# The patterns below are texts, which `re` compiles at their first use: most processes show no address.

# Parameters whose values only identify an object, version or format. For all others, only the name is shown.
_SHOWN_VALUES = frozenset(
    "dl download export file filename files format generation id lang page path raw ref rev revision version "  # noqa: SIM905
    "versionid".split()
)
# A value that looks like a key is hidden under any name: JSON web tokens, long hexadecimal numbers, long mixtures of
# digits, small and capital letters.
_LOOKS_SECRET = (
    r"eyJ[\w-]{8,}.*|[0-9a-fA-F-]{32,}"
    r"|(?=[^0-9]*[0-9])(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?:[\w+/=-]|%[0-9A-Fa-f]{2}){20,}"
)
# Drive's ids are such mixtures, and grant no access by themselves.
_OBJECT_ID = r"[\w-]{19,64}"

# Names of values that grant access, in text and in options, for which no list of harmless names exists.
_SECRET_NAME = (
    r"x-(?:amz|goog|oss|cos|bz|ms)-[\w-]+|aws_?access_?key_?id|google_?access_?id|oss_?access_?key_?id|key-pair-id"
    r"|sig|jwt|rlkey|resourcekey|pwd|hmac|nonce|otp"
    r"|[\w.-]*(?:signature|token|secret|passw(?:or)?d|passphrase|passcode|credentials?|session(?:[_-]?id)?|cookie|ticket"
    r"|auth|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|connection[_-]?string)"
    r"|[\w.-]*[_.-]key"
)
# These are words of ordinary sentences too, so only `name=value` makes the value a secret.
_WORDY_NAME = r"key|code|pass|pin|policy|sas|sid"
# Other parts of a login; user names are hidden too, because notebooks are shared.
_SECRET_OPTION = rf"(?i)(?:{_SECRET_NAME}|{_WORDY_NAME}|user(?:name)?|account_name)"
_SIGNATURE = (
    r"(?i)x-(?:amz|goog|oss|cos|bz)-.*|.*signature|sig|.*token|key-pair-id|policy|expires|exp|se|hmac|rlkey|jwt"
)

# fsspec's chains, and not the colons of an address such as [::1].
_CHAIN = r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::))"
_SCHEME = r"\s*([A-Za-z][A-Za-z0-9+.-]*)://"
# In these, the part before the "@" belongs to the address: a container, an organisation and its repository.
_PUBLIC_USERINFO = {
    **dict.fromkeys(("abfs", "abfss", "az", "wasb", "wasbs"), r"[^:@]*"),
    **dict.fromkeys(("github", "gitlab"), r"[^:@]*(?::[^:@]*)?"),
}
# In these, "@" separates a revision from the name; a colon before it means a login.
_NO_SERVER = frozenset({"hf", "kaggle", "gdrive"})
_PORT = r"[^:]*(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?"
_WEB = frozenset({"http", "https", "ws", "wss"})

_URL_IN_TEXT = r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>`|]+"
_LOGIN_IN_TEXT = r"(?<![\w/@:])[\w.+-]+:[^\s/@'\"]+@(?=[\w.-])"
_QUERY_IN_TEXT = r"(?<=[\w/.])\?([^\s'\"<>`|?]*=[^\s'\"<>`|]*)"
_PAIR_IN_TEXT = (
    rf"(?i)(?<![\w-])((?:--?)?(?:(?:{_SECRET_NAME})['\"]?\s*[=:]\s*|(?:{_WORDY_NAME})=(?!\d{{1,5}}\b)))"
    r"(?:'[^']*'|\"[^\"]*\"|[^\s&;,'\")]+)"
)
_OPTION_IN_TEXT = rf"(?i)(?<!\S)(--?(?:{_SECRET_NAME})\s+)\S+"
_HEADER_IN_TEXT = (
    r"(?i)\b((?:proxy-)?authorization\b['\"]?\s*[:=]?\s*['\"]?(?:(?:bearer|basic|digest|token)\s+)?"
    r"|(?:bearer|basic)\s+)[^\s'\",]{6,}"
)
_TOKEN_IN_TEXT = r"\b(?:eyJ[\w-]{8,}\.[\w.-]+|hf_\w{8,}|gh[opsu]_\w{16,}|AKIA[0-9A-Z]{12,}|ya29\.[\w-]+)"
_UNPRINTABLE = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
_LONGEST_REASON = 300


def show_address(address: str) -> str:
    """Return an address as it may be shown in messages, reports and records: without users, passwords, fragments on the
    web and the values of most parameters. Text without a scheme is a path. Of an address that cannot be parsed only the
    scheme is left, because it is unknown where its password ends.

    >>> show_address("https://ann:pw@example.org/a.zip?id=7&X-Amz-Signature=0f3b")
    'https://example.org/a.zip?id=7&X-Amz-Signature=…'
    >>> show_address("ftp://ann:se/cret@host/data.zip")
    'ftp://host/data.zip'
    """
    return "::".join(_show_one(part) for part in re.split(_CHAIN, _printable(address.strip())))


def _show_one(address: str) -> str:
    found = re.match(_SCHEME, address)
    if found is None:
        # An address that lost its scheme still has "::" or "@"; a path has no user.
        if not re.match(r"[^/]*:[^/]*@", address):
            return address
        place, mark, query = address.partition("?")
        server = place[place.rindex("@") :] if "@" in place else ""
        return f"{HIDDEN}{server}{mark}{_show_query(query)}"
    scheme, rest = found[1], address[found.end() :]
    is_web = scheme.lower() in _WEB
    # With other schemes, a fragment belongs to the name.
    whole = rest.partition("#")[0] if is_web else rest
    place, mark, query = whole.partition("?")
    # Keys in buckets may contain a question mark, so there only a query with a value counts.
    if not is_web and not (mark and "=" in query):
        place, query = whole, ""
    shown = _show_place(scheme.lower(), place)
    if shown is None:
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{shown}{query and '?'}{_show_query(query)}"


def _show_place(scheme: str, place: str) -> str | None:
    """Return server and path without a login; `None` if it is unclear where the login ends."""
    server, slash, path = place.partition("/")
    user, at, host = server.rpartition("@")
    if scheme in _WEB:
        # With the values of its `;name=value` parameters hidden.
        shown = re.sub(r";([^;/=]*)=[^;/]*", rf";\1={HIDDEN}", path)
        return f"{host}{slash}{shown}" if _is_web_place(place) else None
    if scheme in _PUBLIC_USERINFO:
        if not re.fullmatch(_PUBLIC_USERINFO[scheme], user):
            return None
        # `az://container@account:KEY/…`: what follows the account's colon is not a port.
        return place if re.fullmatch(_PORT, host) else f"{user}{at}{host.partition(':')[0]}:{HIDDEN}{slash}{path}"
    if scheme in _NO_SERVER:
        return re.sub(r"[^/@]*:[^@]*@", f"{HIDDEN}@", place)
    if at or re.fullmatch(_PORT, server):
        return f"{host}{slash}{path}"
    # A password may hold a slash that should have been written %2F; then the first colon is not followed by a port.
    return path.partition("@")[2] or None


def _is_web_place(place: str) -> bool:
    try:
        parts = urlsplit(f"https://{place}")
        # Reading `port` raises if it is not a number, as does an open bracket.
        return bool(parts.hostname) and (parts.port is None or parts.port >= 0)
    except ValueError:
        return False


def _show_query(query: str) -> str:
    return re.sub(r"[^&;]+", lambda pair: _show_pair(pair[0]), query)


def _show_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        return name if name.lower() in _SHOWN_VALUES or re.fullmatch(r"[a-z_-]{1,16}", name) else HIDDEN
    if re.fullmatch(_LOOKS_SECRET, name):
        return HIDDEN
    known = name.lower() in _SHOWN_VALUES
    harmless = not re.fullmatch(_LOOKS_SECRET, value) or (name.lower() == "id" and re.fullmatch(_OBJECT_ID, value))
    return pair if not value or (known and harmless) else f"{name}={HIDDEN}"


def names_secret(name: str) -> bool:
    """Return whether a parameter's name says that its value grants access, or names a user."""
    return re.fullmatch(_SECRET_OPTION, name) is not None


def is_signed_address(url: str) -> bool:
    """Return whether an address carries a signature or token of its own, which may expire."""
    names = (pair.partition("=")[0] for pair in re.split("[&;]", url.partition("#")[0].partition("?")[2]))
    return any(re.fullmatch(_SIGNATURE, name) for name in names)


def hide_secrets(text: str, secrets: Sequence[str] = ()) -> str:
    """Return another software's message on one line of at most 300 characters, without what `show_address` hides, nor
    `secrets` that are known."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = " ".join(_printable(re.sub(r"\s+", " ", text)).split())
    # Punctuation at the end belongs to the sentence, not to the address.
    text = re.sub(_URL_IN_TEXT, lambda url: show_address(end := url[0].rstrip(".,:)]}")) + url[0][len(end) :], text)
    text = re.sub(_LOGIN_IN_TEXT, f"{HIDDEN}@", text)
    text = re.sub(_QUERY_IN_TEXT, lambda found: f"?{_show_query(found[1])}", text)
    # Headers first: "Authorization: Bearer x" also looks like a pair whose value is "Bearer".
    text = re.sub(_HEADER_IN_TEXT, rf"\1{HIDDEN}", text)
    # "Authorization: Bearer …" is already hidden, and "key: …" has nothing left to hide.
    text = re.sub(_PAIR_IN_TEXT, lambda found: found[0] if HIDDEN in found[0] else f"{found[1]}{HIDDEN}", text)
    text = re.sub(_OPTION_IN_TEXT, rf"\1{HIDDEN}", text)
    text = re.sub(_TOKEN_IN_TEXT, HIDDEN, text)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def secrets_in(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values in a file system's options, at any depth, that must never be shown."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, dict):
            found += secrets_in(value)
        # Hiding a shorter value would garble every message, and it is hardly a secret.
        elif isinstance(value, str) and len(value) >= 4 and re.fullmatch(_SECRET_OPTION, name):
            found.append(value)
    return tuple(found)


def _printable(text: str) -> str:
    """Return text with control characters escaped, so that a terminal does not act on them."""
    return re.sub(_UNPRINTABLE, lambda found: ascii(found[0])[1:-1], text)
