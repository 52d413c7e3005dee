"""Hide passwords, tokens and signatures in everything that is shown: addresses, and messages of other software.

One rule says what may be shown, not what must be hidden, because services invent new names for their keys faster than
any list grows. Of an address, the server, the path and the *names* of parameters are shown, and the values of a few
parameters that say which object is meant. Other software's text cannot be checked that way; in it every address follows
the rule, and values with a name that suggests a secret are hidden.

This is in the lowest layer, so that every message can use it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HIDDEN = "…"

# Parameters whose values say which object, version or form is meant. Only the names of all others are shown.
_SHOWN_VALUES = frozenset(
    "dl download export file filename files format generation id lang page path raw ref rev revision version "  # noqa: SIM905
    "versionid".split()
)
# A value that looks like a key is hidden under any name: JSON web tokens, long hexadecimal numbers, long mixtures of
# digits, small and capital letters.
_LOOKS_SECRET = re.compile(
    r"eyJ[\w-]{8,}.*|[0-9a-fA-F-]{32,}|(?=[^0-9]*[0-9])(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?:[\w+/=-]|%[0-9A-Fa-f]{2}){20,}"
)
# Drive's ids are such mixtures and open nothing by themselves.
_OBJECT_ID = re.compile(r"[\w-]{19,64}")

# Names of values that grant access, for text and options, for which there is no list of what may be shown.
_SECRET_NAME = (
    r"x-(?:amz|goog|oss|cos|bz|ms)-[\w-]+|aws_?access_?key_?id|google_?access_?id|oss_?access_?key_?id|key-pair-id"
    r"|sig|jwt|rlkey|resourcekey|pwd|hmac|nonce|otp"
    r"|[\w.-]*(?:signature|token|secret|passw(?:or)?d|passphrase|passcode|credentials?|session(?:[_-]?id)?|cookie|ticket"
    r"|auth|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|connection[_-]?string)"
    r"|[\w.-]*[_.-]key"
)
# Words of ordinary sentences as well, so that only `name=value` makes a secret of what follows.
_WORDY_NAME = r"key|code|pass|pin|policy|sas|sid"
# Other parts of a login; user names are hidden too, because notebooks are shared.
_SECRET_OPTION = re.compile(rf"(?:{_SECRET_NAME}|{_WORDY_NAME}|user(?:name)?|account_name)", re.IGNORECASE)
_SIGNATURE = re.compile(
    r"(?i)x-(?:amz|goog|oss|cos|bz)-.*|.*signature|sig|.*token|key-pair-id|policy|expires|exp|se|hmac|rlkey|jwt"
)

# fsspec's chains, and not the colons of an address such as [::1].
_CHAIN = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::))")
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://")
# In these, a part of the address is before the "@": a container, an organisation and its repository.
_PUBLIC_USERINFO = {
    **dict.fromkeys(("abfs", "abfss", "az", "wasb", "wasbs"), re.compile(r"[^:@]*")),
    **dict.fromkeys(("github", "gitlab"), re.compile(r"[^:@]*(?::[^:@]*)?")),
}
# Their "@" is before a revision, behind a name; a colon before it is a login.
_NO_SERVER = frozenset({"hf", "kaggle", "gdrive"})
_PORT = re.compile(r"[^:]*(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")
_WEB = frozenset({"http", "https", "ws", "wss"})

_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>`|]+")
_LOGIN_IN_TEXT = re.compile(r"(?<![\w/@:])[\w.+-]+:[^\s/@'\"]+@(?=[\w.-])")
_QUERY_IN_TEXT = re.compile(r"(?<=[\w/.])\?([^\s'\"<>`|?]*=[^\s'\"<>`|]*)")
_PAIR_IN_TEXT = re.compile(
    rf"(?<![\w-])((?:--?)?(?:(?:{_SECRET_NAME})['\"]?\s*[=:]\s*|(?:{_WORDY_NAME})=(?!\d{{1,5}}\b)))"
    r"(?:'[^']*'|\"[^\"]*\"|[^\s&;,'\")]+)",
    re.IGNORECASE,
)
_OPTION_IN_TEXT = re.compile(rf"(?<!\S)(--?(?:{_SECRET_NAME})\s+)\S+", re.IGNORECASE)
_HEADER_IN_TEXT = re.compile(
    r"\b((?:proxy-)?authorization\b['\"]?\s*[:=]?\s*['\"]?(?:(?:bearer|basic|digest|token)\s+)?|(?:bearer|basic)\s+)"
    r"[^\s'\",]{6,}",
    re.IGNORECASE,
)
_TOKEN_IN_TEXT = re.compile(r"\b(?:eyJ[\w-]{8,}\.[\w.-]+|hf_\w{8,}|gh[opsu]_\w{16,}|AKIA[0-9A-Z]{12,}|ya29\.[\w-]+)")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LONGEST_REASON = 300


def show_address(address: str) -> str:
    """Return an address as it may be shown in messages, reports and records.

    Users, passwords, fragments and the values of parameters are left out, except for parameters that only say which
    object is meant. Text without a scheme is a path and is returned without its control characters. Of an address that
    cannot be parsed only the scheme is left, because it is unknown where its password ends.

    >>> show_address("https://ann:pw@example.org/a.zip?id=7&X-Amz-Signature=0f3b")
    'https://example.org/a.zip?id=7&X-Amz-Signature=…'
    >>> show_address("ftp://ann:se/cret@host/data.zip")
    'ftp://host/data.zip'
    """
    return "::".join(_show_one(part) for part in _CHAIN.split(_printable(address.strip())))


def _show_one(address: str) -> str:
    found = _SCHEME.match(address)
    if found is None:
        # "::" or "@" is left of an address that lost its scheme; a path has no user.
        return f"{HIDDEN}{address[address.rindex('@') :]}" if re.match(r"[^/]*:[^/]*@", address) else address
    scheme, rest = found[1], address[found.end() :]
    whole = rest.partition("#")[0]
    place, mark, query = whole.partition("?")
    # Keys in buckets may hold a question mark, so there a query must have a value.
    if scheme.lower() not in _WEB and not (mark and "=" in query):
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
        if not _PUBLIC_USERINFO[scheme].fullmatch(user):
            return None
        # `az://container@account:KEY/…`: what follows the colon of an account is not a port.
        return place if _PORT.fullmatch(host) else f"{user}{at}{host.partition(':')[0]}:{HIDDEN}{slash}{path}"
    if scheme in _NO_SERVER:
        return re.sub(r"[^/@]*:[^@]*@", f"{HIDDEN}@", place)
    if at or _PORT.fullmatch(server):
        return f"{host}{slash}{path}"
    # A password may hold a slash that should have been written %2F; then no port follows the first colon.
    return path.partition("@")[2] or None


def _is_web_place(place: str) -> bool:
    try:
        parts = urlsplit(f"https://{place}")
        # Raises if the port is not a number, as for an open bracket.
        return bool(parts.hostname) and (parts.port is None or parts.port >= 0)
    except ValueError:
        return False


def _show_query(query: str) -> str:
    return re.sub(r"[^&;]+", lambda pair: _show_pair(pair[0]), query)


def _show_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        return name if name.lower() in _SHOWN_VALUES or re.fullmatch(r"[a-z_-]{1,16}", name) else HIDDEN
    if _LOOKS_SECRET.fullmatch(name):
        return HIDDEN
    known = name.lower() in _SHOWN_VALUES
    harmless = not _LOOKS_SECRET.fullmatch(value) or (name.lower() == "id" and _OBJECT_ID.fullmatch(value))
    return pair if not value or (known and harmless) else f"{name}={HIDDEN}"


def names_secret(name: str) -> bool:
    """Return whether a parameter's name says that its value grants access, or names a user."""
    return _SECRET_OPTION.fullmatch(name) is not None


def is_signed_address(url: str) -> bool:
    """Return whether an address carries a signature or token of its own, which may expire."""
    names = (pair.partition("=")[0] for pair in re.split("[&;]", url.partition("#")[0].partition("?")[2]))
    return any(_SIGNATURE.fullmatch(name) for name in names)


def hide_secrets(text: str, secrets: Sequence[str] = ()) -> str:
    """Return a message of other software on one line of at most 300 characters, without secrets.

    Args:
        text: the message; addresses in it are shown as `show_address` shows them.
        secrets: values that are known to be secret, hidden wherever they occur.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = " ".join(_printable(re.sub(r"\s+", " ", text)).split())
    # Punctuation at the end belongs to the sentence, not to the address.
    text = _URL_IN_TEXT.sub(lambda url: show_address(end := url[0].rstrip(".,:)]}")) + url[0][len(end) :], text)
    text = _LOGIN_IN_TEXT.sub(f"{HIDDEN}@", text)
    text = _QUERY_IN_TEXT.sub(lambda found: f"?{_show_query(found[1])}", text)
    # Headers first: "Authorization: Bearer x" is a pair as well, whose value would seem to be "Bearer".
    text = _HEADER_IN_TEXT.sub(rf"\1{HIDDEN}", text)
    # "Authorization: Bearer …" is already hidden, and nothing is left to hide in "key: …".
    text = _PAIR_IN_TEXT.sub(lambda found: found[0] if HIDDEN in found[0] else f"{found[1]}{HIDDEN}", text)
    text = _OPTION_IN_TEXT.sub(rf"\1{HIDDEN}", text)
    text = _TOKEN_IN_TEXT.sub(HIDDEN, text)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def secrets_in(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values in a file system's options, at any depth, that must never be shown."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, dict):
            found += secrets_in(value)
        # A shorter value would hide half of every message, and is hardly a secret.
        elif isinstance(value, str) and len(value) >= 4 and _SECRET_OPTION.fullmatch(name):
            found.append(value)
    return tuple(found)


def _printable(text: str) -> str:
    """Return text with control characters escaped, so that a terminal does not act on them."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)
