"""The Hugging Face Hub: the one file that asks it, for `doctor --fetch` alone.

`http_get` is what `hf_hub_download` itself calls. Newer versions of that keep nothing of a stopped download; all
look into a cache in the home folder, and write notes beside the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url, model_info
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers

from ..errors import BadInput, first_line

SHA256 = re.compile("[0-9a-f]{64}")
# So that no request states other packages of this machine.
constants.HF_HUB_DISABLE_TELEMETRY = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository as it is today. `size`: bytes."""

    repository: str
    path: str
    commit: str
    etag: str
    size: int

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of its content, which is the etag of large files; None for others."""
        return self.etag if SHA256.fullmatch(self.etag) else None


def look_up(repository: str, path: str) -> HubFile:
    """Ask for commit, etag and size of a file. Raises `BadInput` if the hub does not say."""
    with _in_a_sentence(repository):
        metadata = get_hf_file_metadata(hf_hub_url(repository, path))
    if not (metadata.commit_hash and metadata.etag and metadata.size):
        fault = f"what answers for {constants.ENDPOINT}/{repository} is no hub"
        raise BadInput(f"{fault}; look at it in a browser, as a proxy may ask you something, or set HF_ENDPOINT")
    return HubFile(
        repository=repository,
        path=path,
        commit=metadata.commit_hash,
        etag=metadata.etag,
        size=metadata.size,
    )


def licence_tag(repository: str) -> str | None:
    """Return the licence that a repository's card states today, or None if it is not read."""
    try:
        tags = model_info(repository, timeout=constants.HF_HUB_ETAG_TIMEOUT).tags or ()
    except Exception:  # for show alone: a mirror of files need not have it
        return None
    return next((tag.removeprefix("license:")[:40] for tag in tags if tag.startswith("license:")), None)


def download(wanted: HubFile, file: BinaryIO) -> None:
    """Complete a file that has its beginning or nothing. Raises `BadInput` if that fails; the beginning stays."""
    start = file.seek(0, os.SEEK_END)
    if start > wanted.size or not wanted.sha256:
        start = 0
    file.seek(start)
    file.truncate()
    with _in_a_sentence(wanted.repository):
        http_get(
            hf_hub_url(wanted.repository, wanted.path, revision=wanted.commit),
            file,
            resume_size=start,
            headers=build_hf_headers(),
            expected_size=wanted.size,
            displayed_filename=wanted.path.rpartition("/")[2],
        )


@contextmanager
def _in_a_sentence(repository: str) -> Iterator[None]:
    """Turn the library's errors into `BadInput`; those of the disk stay."""
    page = f"{constants.ENDPOINT}/{repository}"
    try:
        yield
    except errors.GatedRepoError as error:
        cure = f"accept its terms at {page}, run hf auth login, then the same command"
        raise BadInput(f"{repository} gives its files to those alone who accept its terms; {cure}") from error
    except errors.OfflineModeIsEnabled as error:
        raise BadInput("HF_HUB_OFFLINE keeps this machine offline; unset it, or get the file by hand") from error
    except errors.RepositoryNotFoundError as error:
        cure = "if it asks for an account, run hf auth login; else get the file elsewhere"
        raise BadInput(f"{page} is not there, or not for you; look at it in a browser, and {cure}") from error
    except Exception as error:  # requests' or httpx's, by the library's version
        if getattr(error, "errno", None):
            raise
        cure = "check connection, proxy and HF_ENDPOINT, and the same command goes on"
        raise BadInput(f"{page} was not read ({first_line(error)}); {cure}") from error
