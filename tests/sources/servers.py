"""Real services on loopback for the tests of this folder: an S3 (moto's), an FTP and an SFTP server over a folder."""

import contextlib
import logging
import os
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import certifi
import pytest

USER, PASSWORD = "ann", "s3cret-w@rd"


class BucketService:
    """moto's S3 with one bucket; objects are put straight into it, without a client."""

    bucket = "data"

    def __init__(self, address: str, authorities: Path) -> None:
        self.address = address
        self.authorities = authorities
        self._waits = 0
        self._act: Callable[[], object] = dict

    @property
    def backend(self) -> Any:
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["aws"]

    def put(self, key: str, content: bytes, *, public: bool = False) -> None:
        """Write an object, in place of any other of that key."""
        self.backend.put_object(self.bucket, key, content)
        if public:
            from moto.s3.models import get_canned_acl

            self.backend.put_object_acl(self.bucket, key, get_canned_acl("public-read"))

    def remove(self, key: str) -> None:
        self.backend.delete_object(self.bucket, key)

    def hold(self, number: int, act: Callable[[], object]) -> None:
        """Call `act` before the request of this number from now on is answered; requests of its own do not count."""
        self._waits, self._act = number, act

    def answer(self, app: Any, environ: Any, start: Any) -> Any:
        """Have the server's application answer a request."""
        self._waits -= 1
        if self._waits == 0:
            self._act()
        return app(environ, start)

    @property
    def is_holding(self) -> bool:
        """Whether the request is yet to come."""
        return self._waits > 0

    def demand_known_logins(self, *, wanted: bool) -> None:
        """Refuse every login that nobody made, or accept all again."""
        from moto import settings

        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0 if wanted else float("inf")


class FolderService:
    """A server over `root`; `address` is of its top folder, `login_address` the same with user and password."""

    def __init__(self, root: Path, scheme: str, port: int) -> None:
        self.root = root
        self.address = f"{scheme}://127.0.0.1:{port}"
        self.login_address = f"{scheme}://{USER}:{PASSWORD.replace('@', '%40')}@127.0.0.1:{port}"
        self.server: Any = None


@contextlib.contextmanager
def ftp_service(root: Path) -> Iterator[FolderService]:
    """An FTP server in a thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # before Python 3.12 it uses asyncore, which is old
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.ioloop import IOLoop
        from pyftpdlib.servers import FTPServer

    authorizer = DummyAuthorizer()
    authorizer.add_user(USER, PASSWORD, str(root), perm="elr")
    loop = IOLoop()
    names = {"authorizer": authorizer, "use_sendfile": False, "auth_failed_timeout": 0}
    handler = type("Handler", (FTPHandler,), names)
    server = FTPServer(("127.0.0.1", 0), handler, ioloop=loop)
    service = FolderService(root, "ftp", server.address[1])
    service.server = server
    ending = threading.Event()

    def serve() -> None:
        while not ending.is_set():
            server.serve_forever(timeout=0.02, blocking=False, handle_exit=False)
        server.close_all()

    thread = threading.Thread(target=serve, name="ftp-server")
    thread.start()
    try:
        yield service
    finally:
        ending.set()
        thread.join(10)


@contextlib.contextmanager
def sftp_service(root: Path) -> Iterator[FolderService]:
    """An SFTP server in a thread, with paramiko's own transport for each connection."""
    import paramiko

    key = paramiko.ECDSAKey.generate()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    service = FolderService(root, "sftp", listener.getsockname()[1])
    ending = threading.Event()
    transports: list[paramiko.Transport] = []

    class Door(paramiko.ServerInterface):  # type: ignore[misc]
        def check_auth_password(self, username: str, password: str) -> Any:
            right = (username, password) == (USER, PASSWORD)
            return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED

        def check_channel_request(self, kind: str, chanid: int) -> Any:
            return paramiko.OPEN_SUCCEEDED

        def get_allowed_auths(self, username: str) -> str:
            return "password"

    def serve() -> None:
        while not ending.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            transport = paramiko.Transport(connection)
            transports.append(transport)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _served_folder(root))
            with contextlib.suppress(paramiko.SSHException, EOFError):
                transport.start_server(event=threading.Event(), server=Door())
        for transport in transports:
            transport.close()
        listener.close()

    thread = threading.Thread(target=serve, name="sftp-server")
    thread.start()
    try:
        yield service
    finally:
        ending.set()
        thread.join(10)


def _served_folder(root: Path) -> Any:
    """paramiko's interface over a folder, for reading."""
    import paramiko

    class Served(paramiko.SFTPServerInterface):  # type: ignore[misc]
        def _real(self, path: str) -> str:
            return f"{root}{self.canonicalize(path)}"

        def list_folder(self, path: str) -> Any:
            return self._answer(
                lambda: [self._facts(entry.path, follow=False) for entry in os.scandir(self._real(path))]
            )

        def stat(self, path: str) -> Any:
            return self._answer(lambda: self._facts(self._real(path), follow=True))

        def lstat(self, path: str) -> Any:
            return self._answer(lambda: self._facts(self._real(path), follow=False))

        def open(self, path: str, flags: int, attr: Any) -> Any:
            def opened() -> Any:
                handle = paramiko.SFTPHandle(flags)
                handle.readfile = Path(self._real(path)).open("rb")  # noqa: SIM115  # it closes it
                return handle

            return self._answer(opened)

        @staticmethod
        def _facts(path: str, *, follow: bool) -> Any:
            return paramiko.SFTPAttributes.from_stat(Path(path).stat(follow_symlinks=follow), Path(path).name)

        @staticmethod
        def _answer(make: Any) -> Any:
            try:
                return make()
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno)

    return Served


@contextlib.contextmanager
def _models_read_once() -> Iterator[None]:
    """Have botocore find and read its descriptions of services once, and not for each of hundreds of clients; and moto
    its own services, not for each request.

    They look through hundreds of folders, and parse megabytes of JSON: most of what a client takes, and a third of a
    request.
    """
    from botocore.hooks import EventAliaser
    from botocore.loaders import JSONFileLoader, Loader
    from moto import backends

    with pytest.MonkeyPatch.context() as patch:
        services = sorted(backends.list_of_moto_modules())
        patch.setattr(backends, "list_of_moto_modules", lambda: services)
        patch.setattr(EventAliaser, "_alias_event_name", _once(EventAliaser._alias_event_name))
        patch.setattr(JSONFileLoader, "load_file", _once(JSONFileLoader.load_file))
        patch.setattr(Loader, "list_available_services", _once(Loader.list_available_services))
        yield


def _once(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with its first result for the same arguments, whichever object it is called on."""
    kept = dict[tuple[Any, ...], Any]()

    def call(owner: Any, *arguments: Any, **options: Any) -> Any:
        key = (*arguments, *options.items())
        if key not in kept:
            kept[key] = method(owner, *arguments, **options)
        return kept[key]

    return call


@contextlib.contextmanager
def moto_service() -> Iterator[BucketService]:
    """moto's S3 server in threads of this process."""
    from moto.server import ThreadedMotoServer

    # Otherwise it writes a line for each of thousands of requests.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with _models_read_once(), tempfile.TemporaryDirectory() as folder:
            service = BucketService(f"http://{host}:{port}", _one_authority(Path(folder)))
            serving: Any = server._server
            serving.app = partial(service.answer, serving.app)
            yield service
    finally:
        server.stop()


def _one_authority(folder: Path) -> Path:
    """Write the first of the certificates that clients trust: each client loads them, though here nothing is HTTPS."""
    end = "-----END CERTIFICATE-----\n"
    path = folder / "authority.pem"
    path.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end, encoding="utf-8")
    return path


def use_login(monkeypatch: pytest.MonkeyPatch, service: BucketService, *, known: bool = True) -> None:
    """Have s3:// addresses lead to `service`, with a login in the environment or none at all."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", service.address)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(service.authorities))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    if known:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-secret")
