"""No credential gets into a recipe, whatever the key; a webhook's address is named by its variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe, merged_yaml, plain, settled_overrides

AWS_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYPLANTED"
HOOK = "https://hooks.example.org/T0/B0/planted"
PLANTED = {
    "user in a URL": "s3://AKIA:planted@bucket/x",
    "signed URL": "https://host/x?X-Amz-Signature=planted",
    "aws key": "AKIAIOSFODNN7PLANTED",
    "hub token": "hf_" + "planted" * 5,
    "github token": "ghp_" + "planted" * 6,
    "slack": "https://hooks.slack.com/services/T0/B0/planted",
    "assignment": "AWS_SECRET_ACCESS_KEY=planted1",
    "private key": "-----BEGIN RSA PRIVATE KEY-----planted",
    "environment": AWS_KEY,
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_KEY)
    monkeypatch.setenv("NCP_TEST_HOOK", HOOK)
    monkeypatch.setenv("NCP_TEST_NAME", "plain")


@pytest.mark.parametrize("value", PLANTED.values(), ids=PLANTED.keys())
@pytest.mark.parametrize(
    "key",
    [
        "description",
        "runtime.locations.stdlib-code",
        "runtime.notify.command",
        "stage1.init.from",
        "tokenizer.name",
    ],
)
def test_a_credential_is_refused_wherever_it_stands_and_not_repeated(
    tmp_path: Path, key: str, value: str
) -> None:
    with pytest.raises(RecipeError, match="carries credentials") as caught:
        load_recipe("demo", [f"{key}={value}"])
    assert "planted" not in str(caught.value).lower() and key.split(".")[-1] in str(caught.value)
    path = tmp_path / "r.yaml"
    full = key.replace("stage1", "stages.stage1")
    path.write_text(f"extends: demo\n{full}: '{value}'\n")
    with pytest.raises(RecipeError, match=r"r\.yaml:2: .*carries credentials") as caught:
        load_recipe(str(path))
    assert "planted" not in str(caught.value).lower()


def test_a_credential_that_a_later_override_takes_back_is_refused_too() -> None:
    with pytest.raises(RecipeError, match="carries credentials"):
        load_recipe("demo", [f"description={AWS_KEY}", "description=fine"])


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "NCP_UNSET_TOKEN"])
def test_a_secret_of_the_environment_is_not_resolved_into_a_recipe(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"description: \$\{{oc\.env:{name}\}} is a credential") as caught:
        load_recipe("demo", [f"description=${{oc.env:{name}}}"])
    assert AWS_KEY not in str(caught.value)


@pytest.mark.parametrize("url", ["https://hooks/SECRET", HOOK, "https://host/?x=1"])
def test_a_webhooks_address_is_a_secret(url: str) -> None:
    with pytest.raises(
        RecipeError, match=r"runtime\.notify\.url: the URL carries .* runtime\.notify\.url_env=NCP_NOTIFY_URL"
    ):
        load_recipe("demo", [f"runtime.notify.url={url}"])


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/hook", "http://localhost/x", "https://alerts.example.org"]
)
def test_an_address_that_gives_nothing_away_may_stand(url: str) -> None:
    assert load_recipe("demo", [f"runtime.notify.url={url}"]).runtime.notify.url == url


@pytest.mark.parametrize(
    "override", ["runtime.notify.url=${oc.env:NCP_TEST_HOOK}", "runtime.notify.url_env=NCP_TEST_HOOK"]
)
def test_a_webhook_is_named_by_its_variable_and_only_the_name_is_kept(override: str) -> None:
    recipe = load_recipe("demo", [override])
    assert (recipe.runtime.notify.url, recipe.runtime.notify.url_env) == ("", "NCP_TEST_HOOK")
    assert HOOK not in str(plain(recipe))
    assert HOOK not in str(settled_overrides([override]))


def test_the_environment_is_asked_once_and_what_is_shipped_asks_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "extends: demo\ndescription: of ${oc.env:NCP_TEST_NAME}\nruntime: {notify: {url: '${oc.env:NCP_TEST_HOOK}'}}\n"
    )
    overrides = settled_overrides(["sources.stdlib-code.globs=['${oc.env:NCP_TEST_NAME}/**']"])
    (tmp_path / "shipped.yaml").write_text(merged_yaml(str(path)))
    monkeypatch.delenv("NCP_TEST_NAME")
    monkeypatch.delenv("NCP_TEST_HOOK")
    recipe = load_recipe(str(tmp_path / "shipped.yaml"), overrides)
    assert recipe.description == "of plain" and recipe.sources["stdlib-code"].globs == ("plain/**",)
    assert recipe.runtime.notify.url_env == "NCP_TEST_HOOK"
    assert HOOK not in (tmp_path / "shipped.yaml").read_text()
