"""A web page, an error message or a pointer that was saved under a checkpoint's name is called what it is."""

from __future__ import annotations

import json

import pytest
import torch
from weight_files import refusal, state

from sdvg_core.cli import main

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5676000000\n"
PAGES = {
    "page": (b"<!DOCTYPE html>\n<html class=''><head></head></html>", "a web page"),
    "upper case": (b"\n<!doctype HTML>", "a web page"),
    "no doctype": (b"\xef\xbb\xbf<html lang='en'>", "a web page"),
    "markup of a store": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "a web page"),
    "error": (b'{"error":"Access to model x is restricted\\n"}', r"error message (Access to model x is restricted"),
    "errors": (b'{ "errors" : [{"message": "gone"}]}', "a server's error message;"),
    "pointer": (POINTER, "a pointer of Git LFS; run git lfs pull"),
}


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "m.safetensors.index.json"])
@pytest.mark.parametrize("content, said", PAGES.values(), ids=PAGES)
def test_what_is_no_checkpoint_is_called_what_it_is(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    sentence = refusal(tmp_path / name)
    assert said in sentence
    assert "download the file itself" in sentence
    assert len(sentence) < 400


def test_an_archive_that_was_renamed_is_called_that_and_the_name_it_needs_is_stated(tmp_path):
    """Catches a header of 85,966,670,672 bytes, which is what the letters of an archive spell."""
    torch.save(state(), tmp_path / "model.safetensors")
    sentence = refusal(tmp_path / "model.safetensors")
    assert "model.safetensors is a zip archive" in sentence
    assert "rename it to model.pt" in sentence


def test_a_shard_is_looked_at_too(tmp_path):
    index = {"weight_map": {"a": "one.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "one.safetensors").write_bytes(POINTER)
    assert "one.safetensors is no checkpoint" in refusal(tmp_path / "m.safetensors.index.json")


def test_inspect_and_doctor_say_it(tmp_path, capsys):
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "wan_2.1_vae.safetensors").write_bytes(b"<!DOCTYPE html>")
    assert main(["inspect", str(tmp_path / "vae" / "wan_2.1_vae.safetensors")]) == 2
    assert "a web page" in capsys.readouterr().err
    (tmp_path / "image_reward").mkdir()
    (tmp_path / "image_reward" / "vocab.txt").write_bytes(b"<!DOCTYPE html>")
    assert main(["doctor", "--models", str(tmp_path)]) == 0
    assert "UNUSABLE" in (out := capsys.readouterr().out)
    assert "vocab.txt is a web page" in out
