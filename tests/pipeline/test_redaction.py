"""Secrets of the environment and credentials in URLs, in whatever text."""

from __future__ import annotations

import pytest

from pipeline.redaction import HIDDEN, holds_credentials, redact
from pipeline.storage import Storage, StorageError


def test_values_of_secret_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        "AWS_SECRET_ACCESS_KEY": "/abc+planted/secret",
        "HF_TOKEN": "hf_planted_token",
        "WANDB_API_KEY": "planted-wandb",
        "RAY_AUTH_TOKEN": "planted-ray",
        "DB_PASSWORD": "planted-password",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SETTING", "visible-value")
    monkeypatch.setenv("SHORT_KEY", "abc")
    text = redact(" ".join(planted.values()) + " visible-value abc")
    assert text == " ".join([HIDDEN] * len(planted)) + " visible-value abc"


def test_a_path_to_a_credentials_file_is_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "key.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    assert redact(f"no such file: {tmp_path}/key.json").endswith("key.json")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("s3://AKIA:planted@bucket/x", f"s3://{HIDDEN}@bucket/x"),
        ("https://u:planted@host/x?y=1", f"https://{HIDDEN}@host/x?y=1"),
        ("https://h/x?X-Amz-Signature=planted&b=1", f"https://h/x?X-Amz-Signature={HIDDEN}&b=1"),
        ("https://h/x?a=1&access_token=planted", f"https://h/x?a=1&access_token={HIDDEN}"),
    ],
)
def test_credentials_in_urls_are_hidden_and_refused(url: str, kept: str) -> None:
    assert redact(f"cannot open {url}") == f"cannot open {kept}"
    with pytest.raises(StorageError, match="carries credentials") as error:
        Storage(url)
    assert "planted" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["s3://bucket/a@b/c", "hf://datasets/org/name@main", "/mnt/a@b", "memory://x", "s3://b/monkey=1"]
)
def test_other_urls_are_left_alone(url: str) -> None:
    assert not holds_credentials(url) and redact(url) == url
