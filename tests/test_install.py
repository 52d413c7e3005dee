"""How the environments are set up: uv is told where pip would look."""

from __future__ import annotations

from scripts.install import uv_settings

LISTED = """:env:.find-links='/mine'
global.cert='/etc/ca.crt'
global.extra-index-url='https://one/simple https://two/simple'
global.find-links='/wheels'
install.trusted-host='one'
list.format='columns'
"""


def test_uv_looks_where_pip_would() -> None:
    """Each of several places, whoever overrides whom, and the certificates; of other commands nothing."""
    options, variables = uv_settings(LISTED)
    assert options == [
        *("--extra-index-url", "https://one/simple"),
        *("--extra-index-url", "https://two/simple"),
        *("--find-links", "/mine"),
        *("--allow-insecure-host", "one"),
    ]
    assert variables == {"SSL_CERT_FILE": "/etc/ca.crt"}


def test_without_settings_uv_is_told_nothing() -> None:
    """Nor where pip is told to ask no index, but that."""
    assert uv_settings("") == ([], {})
    assert uv_settings("install.no-index='true'\n") == (["--no-index"], {})
