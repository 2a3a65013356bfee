"""The reference page says what the code does."""

import reference


def test_the_reference_page_is_what_the_code_makes() -> None:
    made = reference.make_reference()
    assert reference.PAGE.read_text(encoding="utf-8") == made, (
        "docs/reference.md is out of date; make it anew with `python tests/support/reference.py`."
    )


def test_every_setting_is_on_the_page() -> None:
    text = reference.PAGE.read_text(encoding="utf-8")
    for key in ("latents", "guidance_law", "shard_bytes", "accelerate_config", "sde_form", "expect_width"):
        assert f"| `{key}` |" in text
