"""The keys of encrypted ZeroMQ listeners (CURVE): `curve.public` and `curve.secret` in the folder of keys, each a line
of 40 characters (Z85). Clients need the public one."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec

from oncemq.protocol.errors import SettingInvalid

PUBLIC_FILE = "curve.public"
SECRET_FILE = "curve.secret"
_KEY_CHARACTERS = 40
_PUBLIC_MODE, _SECRET_MODE = 0o644, 0o600
#: Bytes that CURVE adds to each frame: the name of a command, a nonce, a MAC and flags.
FRAME_BYTES = 33


class CurveServerKeys(msgspec.Struct, frozen=True):
    public: str
    secret: str

    def __repr__(self) -> str:
        """Without the secret: it may be logged."""
        return f"CurveServerKeys(public={self.public!r})"


def generate() -> CurveServerKeys:
    """Return new keys."""
    import zmq

    public, secret = zmq.curve_keypair()
    return CurveServerKeys(public.decode(), secret.decode())


def save(keys: CurveServerKeys, folder: Path) -> None:
    """Write the files. Raises FileExistsError if there are keys, which clients may know, and other OSErrors."""
    for name in (SECRET_FILE, PUBLIC_FILE):
        if (folder / name).exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder / name))
    for name, key, mode in ((SECRET_FILE, keys.secret, _SECRET_MODE), (PUBLIC_FILE, keys.public, _PUBLIC_MODE)):
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "w") as file:
            os.fchmod(descriptor, mode)
            file.write(f"{key}\n")


def load(folder: Path) -> CurveServerKeys | None:
    """Read the keys. None: there are none. Raises SettingInvalid, which names the file."""
    secret = _read(folder / SECRET_FILE)
    if secret is None:
        return None
    public = public_of(secret)
    if public is None:
        raise SettingInvalid(f"{folder / SECRET_FILE} has no key of {_KEY_CHARACTERS} characters")
    if _read(folder / PUBLIC_FILE) not in (None, public):
        raise SettingInvalid(f"{folder / PUBLIC_FILE} is not the public key of {SECRET_FILE} in the same folder")
    return CurveServerKeys(public, secret)


def public_of(secret: str) -> str | None:
    """Return the public key of a secret one. None: it is not a key."""
    import zmq

    if len(secret) != _KEY_CHARACTERS:
        return None
    try:
        return zmq.curve_public(secret.encode()).decode()
    except (zmq.ZMQError, ValueError):
        return None


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read().decode("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SettingInvalid(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingInvalid(f"{path} has no key of {_KEY_CHARACTERS} characters") from None
    if path.name == SECRET_FILE and mode & 0o077:
        raise SettingInvalid(f"{path} has the mode {mode:o}, so others can read or change it; run: chmod 600 {path}")
    return text
