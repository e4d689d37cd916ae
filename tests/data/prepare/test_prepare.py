"""A preparation gives the tokens of the tokenizer's library, the same bytes however it is run, and goes on."""

import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tokenizers import Tokenizer, processors

from jaxpar.data.prepare import prepare, progress
from jaxpar.data.prepare.input import compression
from jaxpar.data.prepare.job import WORK
from jaxpar.data.prepare.output import encoders, pieces, tokenize
from jaxpar.data.prepare.run import TOKENIZER
from jaxpar.data.prepare.workers import Report, run_tasks
from jaxpar.data.tokens.text_codec import TextCodec
from tests.data.folders import END, contents, decoded, options, prepared, quiet, texts, write_jsonl, write_tokenizer
from tests.full_disk import full_disk
from tests.processes import ROOT, run_python
from tests.sentences import refused


def printed_by(asked):
    """The lines that a preparation prints, and the folder that it makes."""
    console = quiet()
    folder = prepare(asked, console)
    return console.file.getvalue(), folder


def test_tokens_are_those_of_the_library(tmp_path):
    documents = [*texts(50), "ünïcode \U0001f600", "  spaces\n\n\tand tabs ", END, "x"]
    source = write_jsonl(tmp_path / "a.jsonl", documents)
    folder = prepare(options(tmp_path / "out", source, train_bpe=300, validation_fraction=0.0), quiet())
    tokenizer = Tokenizer.from_file(str(folder.path / TOKENIZER))
    tokenizer.encode_special_tokens = True
    wanted = [[*tokenizer.encode(text).ids, folder.index.separator] for text in documents]
    assert folder.train.tokens[:].tolist() == [token for tokens in wanted for token in tokens]
    assert folder.train.lengths.tolist() == [len(tokens) for tokens in wanted]
    assert folder.index.text_bytes_in("train") == sum(len(text.encode()) for text in documents)
    assert folder.index.vocab == 300 and folder.index.dtype == "uint16"
    assert folder.codec.decode(folder.codec.encode(documents[-4])) == documents[-4]


def backtracking(path: Path) -> Path:
    """A tokenizer whose regular expression gives up on letters that repeat."""
    made = json.loads(write_tokenizer(path).read_text())
    made["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": r"(?=(a|aa)+$)x|(a*)*b\1"}, "behavior": "Isolated", "invert": False
    }  # fmt: skip
    path.write_text(json.dumps(made))
    return path


def test_a_tokenizer_that_gives_up_on_a_text_is_one_sentence(tmp_path: Path):
    file, source = backtracking(tmp_path / "t.json"), write_jsonl(tmp_path / "a.jsonl", ["a" * 60 + "c"])
    with refused("the tokenizer gives up on a text", "retry-limit"):
        prepare(options(tmp_path / "out", source, tokenizer=file), quiet())
    with refused(str(file), "gives up on a text"):
        TextCodec(file).encode("a" * 60 + "c")


def test_documents_begin_with_what_the_tokenizer_puts_before_a_text(tmp_path):
    """Once, in documents that are encoded in pieces too; what it puts behind is left to the end-of-document token."""
    file = write_tokenizer(tmp_path / "t.json", more=("<bos>",))
    made = Tokenizer.from_file(str(file))
    begin = made.token_to_id("<bos>")
    special = [("<bos>", begin), (END, made.token_to_id(END))]
    made.post_processor = processors.TemplateProcessing(single=f"<bos> $A {END}", special_tokens=special)
    made.save(str(file))
    documents = ["ab", "<bos>", "word " * (2 * pieces.LONGEST_PIECE // 5)]
    folder = prepared(tmp_path / "out", documents, tokenizer=file, validation_fraction=0.0)
    starts = folder.train.starts[:].tolist()
    tokens = folder.train.tokens[:]
    assert [place for place, token in enumerate(tokens.tolist()) if token == begin] == starts
    assert decoded(folder)[0] == documents
    record = json.loads((folder.path / "prepare.json").read_text())
    assert record["options"]["before"] == [begin]


@pytest.mark.parametrize("trained", [False, True])
def test_progress_is_shown_within_one_large_archive(tmp_path, monkeypatch, trained):
    """A compressed file is one unit: without progress inside it, the first line would be the last."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(compression, "_READ_BYTES", 2**12)
    incompressible = [np.random.default_rng(number).bytes(10_000).hex() for number in range(60)]
    source = tmp_path / "a.jsonl.gz"
    source.write_bytes(gzip.compress(write_jsonl(tmp_path / "a.jsonl", incompressible).read_bytes(), 1))
    screen = io.StringIO()
    chosen = {"train_bpe": 300} if trained else {}
    prepare(options(tmp_path / "out", source, **chosen), Console(file=screen, width=200))
    for phase in ["tokenizing", *(["training the tokenizer"] if trained else [])]:
        shares = [int(share) for share in re.findall(rf"{phase}: (\d+)%", screen.getvalue())]
        assert shares == sorted(shares) and shares[-1] == 100
        assert len({share for share in shares if 0 < share < 100}) > 2, shares


def reporting(argument: int, report: Report) -> Callable[[int], int]:
    return lambda task: (report((task, argument)), task)[1]


def test_tasks_of_other_processes_report_before_they_are_done():
    heard, done = [], []
    for task in run_tasks(reporting, 7, range(4), 2, heard.append):
        assert (task, 7) in heard
        done.append(task)
    assert sorted(done) == [0, 1, 2, 3] and sorted(heard) == [(task, 7) for task in range(4)]


class Interruption(Exception):
    pass


def interrupted(out, *inputs, after, **changes):
    """A preparation that ends, as if killed, when it has made `after` units."""
    made = []
    original = tokenize._make_unit

    def make(job, encoder, number, *others):
        if len(made) == after:
            raise Interruption
        made.append(number)
        return original(job, encoder, number, *others)

    asked = options(out, *inputs, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenize, "_make_unit", make)
        with pytest.raises(Interruption):
            prepare(asked, quiet())


def test_a_finished_unit_is_never_made_again(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", texts(100))
    interrupted(tmp_path / "out", source, after=4)
    made, original = [], tokenize._make_unit
    monkeypatch.setattr(tokenize, "_make_unit", lambda job, *others: made.append(others[1]) or original(job, *others))
    printed, folder = printed_by(options(tmp_path / "out", source))
    assert "4 units finished before" in printed
    assert made == list(range(4, 4 + len(made))) and len(made) > 5
    assert sorted(chain(*decoded(folder))) == sorted(texts(100))


def test_a_damaged_unit_is_made_again_and_never_used(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(100))
    whole = prepare(options(tmp_path / "whole" / "out", source), quiet())
    interrupted(tmp_path / "out", source, after=4)
    units = tmp_path / "out" / WORK / "units"
    (units / "00000001.json").write_text((units / "00000001.json").read_text()[:-9])
    (units / "00000003.train.tokens").write_bytes(b"cut")
    flipped = ("00000002.train.lengths", "00000000.train.tokens")
    for name in flipped:
        raw = bytearray((units / name).read_bytes())
        raw[-2] ^= 1
        (units / name).write_bytes(raw)
    for name in flipped:
        with refused(name, "missing or damaged", "the same command"):
            prepare(options(tmp_path / "out", source), quiet())
    prepare(options(tmp_path / "out", source, processes=2), quiet())
    assert contents(tmp_path / "out") == contents(whole.path)


def test_a_folder_that_is_finished_is_left_as_it_is(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(40))
    prepare(options(tmp_path / "out", source), quiet())
    before = contents(tmp_path / "out")
    printed, _ = printed_by(options(tmp_path / "out", source))
    assert "is prepared already; nothing was changed." in printed
    assert contents(tmp_path / "out") == before


def test_equal_documents_are_in_one_split_and_the_share_is_what_was_asked(tmp_path):
    documents = texts(400) + texts(400)
    train, validation = decoded(prepared(tmp_path / "out", documents, validation_fraction=0.25, unit_bytes=10**5))
    assert not set(train) & set(validation)
    assert 0.17 < len(validation) / len(documents) < 0.33
    more = decoded(prepared(tmp_path / "more", documents, validation_fraction=0.4, unit_bytes=10**5))[1]
    assert set(validation) < set(more), "a larger share takes the same ones and more"


@pytest.mark.parametrize(
    ("cuts", "key"), [({}, "it has no place"), ({"spaces": False, "lines": False}, "its tokenizer")]
)
def test_a_document_that_cannot_be_cut_is_broken_and_named(tmp_path, monkeypatch, cuts: dict[str, bool], key: str):
    sizes = {"longest": 40, "largest": 90}
    monkeypatch.setattr(encoders, "find_cuts", lambda own: pieces.find_cuts(own)._replace(**sizes, **cuts))
    source = write_jsonl(tmp_path / "a.jsonl", ["b" * 90, "b" * 91, "short"])
    with refused("1 document is broken", "a.jsonl:2", "91 characters", key, "at most 90", "--max-broken"):
        prepare(options(tmp_path / "out", source, validation_fraction=0.0), quiet())
    folder = prepare(options(tmp_path / "out", source, validation_fraction=0.0, max_broken=1), quiet())
    assert decoded(folder)[0] == ["b" * 90, "short"]


@pytest.mark.long
def test_a_long_document_takes_little_more_memory_than_a_short_one(tmp_path):
    """Encoded at once, 24 MB took 2 GB."""
    path = tmp_path / "a.jsonl"
    words = "".join(f"{number * 7919 % 10007} words of text that " for number in range(40_000))
    with open(path, "w") as file:
        file.write(json.dumps({"text": words * 24}) + "\n")
    arguments = ["--input", str(path), "--tokenizer", str(write_tokenizer(tmp_path / "t.json"))]
    arguments += ["--validation-fraction", "0", "--processes", "1", "--out", str(tmp_path / "out")]
    # Not `ru_maxrss`: it begins at the memory of the process that starts the program.
    program = "import re, sys; from jaxpar.prepare import main; assert main(sys.argv[1:]) == 0; "
    program += r"print(int(re.search(r'VmHWM:\s+(\d+) kB', open('/proc/self/status').read())[1]) // 1024)"
    done = run_python("-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 800, "MiB"


def test_a_large_vocabulary_has_wide_tokens(tmp_path):
    path = write_tokenizer(tmp_path / "t.json", stride=300)
    folder = prepared(tmp_path / "out", texts(20), tokenizer=path, validation_fraction=0.0)
    assert (folder.index.dtype, folder.index.vocab) == ("uint32", 300 * 255 + 1)
    assert folder.train.tokens.dtype == np.uint32 and decoded(folder)[0] == texts(20)


def test_what_is_left_out_is_counted_and_named(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", ["good", "", "", "fine"])
    source.write_text(source.read_text() + "oops\n" + '{"text": "\\ud800"}\n')
    printed, folder = printed_by(options(tmp_path / "out", source, max_broken=2, validation_fraction=0.0))
    assert folder.index.skipped == {"broken": 2, "empty": 2}
    assert (
        f"2 broken documents were left out: {source}:5: not JSON (Expecting value, column 1), {source}:6: a lone"
        in printed
    )
    assert decoded(folder)[0] == ["good", "fine"]


def test_broken_documents_stop_at_the_limit_and_a_higher_one_goes_on(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(100))
    source.write_text("oops\n" + source.read_text() + "oops\n" * 2)
    for _ in range(2):
        with refused("3 documents", "--max-broken is 2", f"{source}:1: not JSON", f"{source}:102: not JSON"):
            prepare(options(tmp_path / "out", source, max_broken=2), quiet())
    printed, folder = printed_by(options(tmp_path / "out", source, max_broken=3))
    assert "units finished before" in printed
    assert folder.index.skipped["broken"] == 3


def test_that_there_is_no_validation_document_is_reported(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(3))
    hint = "No document fell into --validation-fraction 1e-09, so a run cannot evaluate; "
    assert hint in printed_by(options(tmp_path / "few", source, validation_fraction=1e-9))[0]
    assert "fell into" not in printed_by(options(tmp_path / "none", source, validation_fraction=0.0))[0]


def test_two_preparations_of_one_folder_do_not_interfere(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(20))
    asked = options(tmp_path / "out", source)
    interrupted(tmp_path / "out", source, after=1)
    program = (
        "import fcntl, sys, time\nfile = open(sys.argv[1], 'a')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ntime.sleep(60)"
    )
    lock = str(tmp_path / "out" / WORK / "lock")
    with subprocess.Popen([sys.executable, "-c", program, lock], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with refused("another preparation", "wait for it to end"):
            prepare(asked, quiet())
        holder.kill()
    prepare(asked, quiet())


def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(300))
    whole = prepare(options(tmp_path / "whole" / "out", source, shard_tokens=10**6), quiet())
    asked = options(tmp_path / "out", source, shard_tokens=10**6)
    for limit, name in ((700, "units"), (15000, "train-00000.npy")):
        with full_disk(limit), refused("File too large", "the same command continues") as caught:
            prepare(asked, quiet())
        assert name in str(caught.value) or limit == 700
        assert not list((tmp_path / "out").rglob("*.tmp"))
    prepare(asked, quiet())
    assert contents(tmp_path / "out") == contents(whole.path)


def test_a_worker_that_is_killed_is_reported_as_killed(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(3000))
    program = (
        "import os, signal, sys, threading, time\n"
        "from jaxpar.prepare import main\n"
        "def kill():\n"
        "    while True:\n"
        "        for child in open(f'/proc/self/task/{os.getpid()}/children').read().split():\n"
        "            if b'spawn_main' in open(f'/proc/{child}/cmdline', 'rb').read():\n"
        "                os.kill(int(child), signal.SIGKILL)\n"
        "                return\n"
        "        time.sleep(0.01)\n"
        "if __name__ == '__main__':\n"
        "    threading.Thread(target=kill, daemon=True).start()\n"
        "    sys.exit(main(sys.argv[1:]))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(program)
    tokenizer = write_tokenizer(tmp_path / "t.json")
    arguments = ["--input", str(source), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "out")]
    done = run_python(script, *arguments, "--processes", 2, "--unit-bytes", 1000, PYTHONPATH=str(ROOT))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(
        "jaxpar: a worker process was ended by SIGKILL, as when memory runs out; the same comm"
    )


def test_a_key_that_the_first_record_does_not_have_is_refused_before_anything_is_written(tmp_path):
    source = tmp_path / "a.jsonl"
    for record, parts in (
        ({"body": "x", "title": "y"}, ("its keys are 'body', 'title'", "key of the text")),
        ({"messages": []}, ("'messages'", "--format chat")),
        ({"conversations": []}, ("'conversations'", "--format chat")),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, ("'chosen'", "--format preference")),
    ):
        source.write_text("\n" + json.dumps(record) + "\n")
        with refused("--text-key 'text'", str(source), *parts):
            prepare(options(tmp_path / "out", source), quiet())
        assert not (tmp_path / "out").exists(), "the same --out takes another key"
    source.write_text('{"body": "x"}\n{"text": "y"}\n')
    with refused("--max-broken is 0", "a.jsonl:2", "no key 'body'", "--text-key"):
        prepare(options(tmp_path / "out", source, text_key="body"), quiet())
