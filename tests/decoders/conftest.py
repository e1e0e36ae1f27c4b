"""A VAE, the file that it would be released as, and the codec that is loaded from that."""

from __future__ import annotations

import pytest
from safetensors.torch import save_file
from vae_parts import make_vae

from sdvg_core.decoders.open import load_vae
from tests.support.random_set import wan_vae_to_original


@pytest.fixture(scope="module")
def vae():
    return make_vae()


@pytest.fixture(scope="module")
def original_file(vae, tmp_path_factory):
    path = tmp_path_factory.mktemp("vae") / "wan_2.1_vae.safetensors"
    save_file(wan_vae_to_original(vae.state_dict()), path)
    return path


@pytest.fixture(scope="module")
def codec(original_file):
    return load_vae(original_file)
