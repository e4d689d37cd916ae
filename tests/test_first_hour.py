"""The commands of the README and the pages work in their order, and print what the pages say."""

from pathlib import Path

import pytest

from tests.first_hour import Step, clean, clone, missing, pages, steps, walk

PAGE = """
Text with `python -m jaxpar.never`.

<!-- run: --set run.steps=2 -->

    python -m jaxpar.train --config a.yaml      # with a comment
    make train ARGS='--set b=1'
    python -m jaxpar.plan \\
        --top 3

<!-- prints -->

    3 plans

<!-- run -->

| to | run |
|---|---|
| draw | `python -m jaxpar.schedule --name gpipe` ([docs](x.md)), then `--set c=1` |

<!-- run -->

    $ echo 3 words
    1 words
    $ echo more

<!-- given: mkdir there -->

Text.

<!-- refused -->

```
python -m jaxpar.train --config none.yaml
```
"""


def test_marked_commands_are_run_in_order():
    train, made, plan, draw, other, words, more, given, refused = steps("x.md", PAGE)
    assert (words.command, words.printed, more.command) == ("echo 3 words", "1 words", "echo more")
    assert train == Step("x.md:6", "python -m jaxpar.train --config a.yaml --set run.steps=2")
    assert made.command == "make train ARGS='--set b=1 --set run.steps=2'"
    assert (plan.command, plan.printed) == ("python -m jaxpar.plan --top 3", "3 plans\n")
    assert draw.command == "python -m jaxpar.schedule --name gpipe" and other.command == "--set c=1"
    assert (given.command, given.status, given.printed) == ("mkdir there", 0, None)
    assert (refused.command, refused.status) == ("python -m jaxpar.train --config none.yaml", 2)


@pytest.mark.parametrize("text", ["<!-- run -->\n\nNo block.", "<!-- prints -->\n\n    nothing before it"])
def test_a_mark_without_its_block_is_an_error(text: str):
    with pytest.raises(ValueError, match=r"x\.md"):
        list(steps("x.md", text))


def test_the_first_words_of_lines_are_looked_for():
    printed = "step 10  loss 2.5\n\u2500\u2500\u2500\n47.5 GiB fits, and\nthe rest is free.\n"
    assert missing("step 20 loss 1.25\n...\n9 MiB fits, and the\n    rest", printed) == []
    assert missing("step 1\nloss 2\ngrad_norm 3\nsteps", printed) == ["grad_norm", "steps"]


def test_lines_without_words_are_compared_whole():
    assert missing("0F0,0F1\n    1f1b  1 2%\n...", "0F0,0F1\n1f1b 1   2%\n") == []
    assert missing("0F0,0F1\n1F0,1B0", "0F0,0F1,0B0\n1F0,1B0\n") == ["0F0,0F1"]
    with pytest.raises(ValueError, match=r"\.\.\."):
        missing("\u2500\u2500\n...", "anything")


def test_a_page_that_does_not_hold_is_reported(tmp_path: Path):
    page = "<!-- run -->\n\n    echo one 1\n    echo two\n    exit 3\n\n<!-- prints -->\n\n    nothing\n"
    (tmp_path / "x.md").write_text(page.replace("    exit 3\n", ""))
    (wrong,) = walk("x.md", tmp_path)
    assert wrong.startswith("x.md:3: `echo two` does not print nothing; it prints")
    (tmp_path / "x.md").write_text(page)
    (wrong,) = walk("x.md", tmp_path)
    assert wrong.startswith("x.md:3: `exit 3` ended with exit code 3")


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("clone"))


@pytest.mark.matrix(quick=0, ci=2)
@pytest.mark.parametrize("page", pages())
def test_every_command_of_a_page_works(page: str, fresh: Path):
    assert not walk(page, clean(fresh))
