"""`python -m jaxpar.mixture`: three stages from one command, continued where killed; a MODEL; one sentence each."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from jaxpar import convert, evaluate, generate, mixture, prepare, serve
from jaxpar.data.clusters.split import RECORD as CLUSTERS
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.token_folder import open_token_folder
from jaxpar.evaluation.mixture import log_probabilities
from jaxpar.generation.mixture.router import RouterWeights
from jaxpar.generation.mixture.source import (
    RECORD,
    ROUTER_FILE,
    MixedWeights,
    Record,
    encode_router,
    open_models,
    read_record,
    write_mixture,
)
from jaxpar.generation.placed_model import open_model, place_model
from jaxpar.generation.scorer import Scorer
from jaxpar.interop.sources.open_source import replaced_weights
from tests.data.folders import decoded, prepared
from tests.data.test_clusters import TOPICS, of_topics
from tests.goldens.loading import FOLDER
from tests.sentences import refused, refused_by_command

CONFIG: dict[str, Any] = {
    "run": {"steps": 4, "log_every": 2}, "model": {"layers": 1, "embed": 32, "heads": 2, "kv_heads": 2, "mlp": 64},
    "parallel": {"fsdp": -1}, "precision": {"compute": "float32"}, "data": {"batch_size": 8, "sequence_length": 32},
    "evaluation": {"sample_tokens": 0},
}  # fmt: skip


def config_file(folder: Path) -> Path:
    (file := folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `config.yaml`, `tokens`, and `out`, a mixture of two models."""
    folder = tmp_path_factory.mktemp("mixture")
    prepared(folder / "tokens", of_topics(40))
    assert mixture.main(command(folder)) == 0
    return folder


def command(folder: Path, *more: str) -> list[str]:
    tokens, out = folder / "tokens", folder / "out"
    arguments = ["--config", config_file(folder), "--tokens", tokens, "--clusters", 2, "--out", out]
    return [*map(str, arguments), *more]


@pytest.mark.long
def test_three_stages_make_a_model_and_go_on_where_they_were_killed(made: Path, capfd: pytest.CaptureFixture[str]):
    out = made / "out"
    before = read_record(out)
    assert before.models == ("expert-0", "expert-1") and before.top == 2
    assert before.validation["top 2"] <= before.validation["all alike"] + 1e-3, "a router that knows nothing is as good"
    # Killed before the router was written, and while the last run was training.
    (out / RECORD).unlink()
    (out / ROUTER_FILE).unlink()
    (out / "expert-1" / "summary.json").unlink()
    capfd.readouterr()
    assert mixture.main(command(made)) == 0
    assert read_record(out) == before, "the same numbers and weights"
    printed = capfd.readouterr().out
    assert "1/3 " in printed and "2/3 run 2 of 2: python -m jaxpar.train" in printed and "top 2" in printed
    assert generate.main(["--model", str(out), "--prompt", "the ship", "--tokens", "4", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["tokens"]) == 4


@pytest.mark.long
def test_documents_are_clustered_by_a_trained_model(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    tokens, model = prepared(tmp_path / "tokens", of_topics(40)), str(made / "out" / "expert-0")
    assert mixture.main(command(tmp_path, "--cluster-by", model)) == 0
    assert json.loads((tokens.path / CLUSTERS).read_text())["model"] == open_model(model, ())[1].digest
    parts = [decoded(open_token_folder(tokens.path / f"cluster-{one}", key="cluster")) for one in range(2)]
    for split, documents in enumerate(decoded(tokens)):
        assert sorted(text for part in parts for text in part[split]) == sorted(documents)
    topics = [[sum(text.startswith(topic) for text in train) for train, _ in parts] for topic in TOPICS]
    assert sum(map(max, topics)) >= 0.75 * sum(map(sum, topics)), "two of three topics fill a cluster each"
    assert read_record(tmp_path / "out").models == ("expert-0", "expert-1")
    capfd.readouterr()
    assert mixture.main(command(tmp_path)) == 2, "these are no clusters by n-grams"
    assert CLUSTERS in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("top", [1, 2])
def test_an_evaluated_mixture_is_that_of_its_models_and_router(made: Path, tmp_path, top: int, capfd):
    assert mixture.main(command(made, "--top", str(top))) == 0
    (text := tmp_path / "text.txt").write_text("the ship sails over 0123 4567 import np")
    capfd.readouterr()
    assert evaluate.main(["--model", str(made / "out"), "--tasks", str(text), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["step"] is None and np.isfinite(found["tasks"]["text"]["metrics"]["nats_per_token"][0])
    rows = [list(range(9)), [7, 7, 7, 7]]
    of_models = np.stack(
        [log_probabilities(one, rows) for one in open_models([made / "out/expert-0", made / "out/expert-1"])]
    )
    source = MixedWeights(made / "out")
    mixed = np.concatenate(
        [one.log_probabilities for one in Scorer(place_model(*open_model(str(made / "out"), ()))).scored(rows)]
    )
    assert source.mixing.top == top
    if top == 1:
        assert np.isclose(mixed, of_models, atol=1e-5).any(0).all(), "each token by one model"
    assert (mixed <= of_models.max(0) + 1e-5).all() and (mixed >= of_models.min(0) - 1e-5).all()


@pytest.mark.long
def test_a_mixture_of_other_parts_is_refused(made: Path, tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(made / "out", out)
    record = (out / RECORD).read_text()
    router = (out / ROUTER_FILE).read_bytes()
    (out / ROUTER_FILE).write_bytes(encode_router(RouterWeights(np.ones((64, 2), "f4"), np.zeros(2, "f4"))))
    with refused(ROUTER_FILE, "another mixture", "python -m jaxpar.mixture"):
        open_model(str(out), ())
    (out / ROUTER_FILE).write_bytes(router)
    (out / RECORD).write_text(record.replace("expert-0", "expert-9"))
    with refused(RECORD, "damaged"):
        open_model(str(out), ())
    (out / RECORD).write_text(record)
    shutil.rmtree(out / "expert-0")
    shutil.copytree(out / "expert-1", out / "expert-0")
    with refused("expert-0", "other weights", RECORD):
        open_model(str(out), ())
    for model, parts in (({"vocab": 260}, ("vocabulary of 260", "one of 257")), ({"mlp": 32}, ("expert-1", "mlp"))):
        other = tmp_path / "other" / "-".join(model)
        other.mkdir(parents=True)
        changes = [word for key, value in model.items() for word in ("--set", f"model.{key}={value}")]
        from jaxpar import train

        arguments = mixture._training(mixture._parser().parse_args(command(made)), other, "expert-1", made / "tokens")
        assert train.main([*arguments[1:], *changes, "--set", "run.steps=1"]) == 0
        with refused(*parts):
            open_models([made / "out/expert-0", other / "expert-1"])


@pytest.mark.parametrize(("models", "top"), [(2, 0), (2, 3), (1, 1)])
def test_a_record_of_more_models_at_a_token_than_there_are_is_damaged(tmp_path: Path, models: int, top: int):
    names = tuple(f"expert-{one}" for one in range(models))
    write_mixture(tmp_path, Record(names, names, "", top), RouterWeights(np.zeros((64, 2), "f4"), np.zeros(2, "f4")))
    with refused(RECORD, "damaged"):
        read_record(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of a model with itself."""
    out = tmp_path_factory.mktemp("mixed")
    assert convert.main(["hf-to-jaxpar", str(FOLDER / "llama"), str(out / "model")]) == 0
    router = RouterWeights(np.zeros((64, 2), "f4"), np.zeros(2, "f4"))
    digests = (open_models([out / "model"])[0].digest,) * 2
    write_mixture(out, Record(("model", "model"), digests, digest(encode_router(router)), 2), router)
    return out


def test_what_takes_one_model_refuses_a_mixture(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    _, source = open_model(str(folder), ())
    with refused("new weights", "a mixture of 2 models", "expected one model"):
        replaced_weights(source, tmp_path)
    tokens = prepared(tmp_path / "tokens", ["one", "two", "three"]).path
    tokenizer = ["--tokenizer", str(FOLDER / "chat" / "tokenizer.json"), "--port", "0"]
    (key := tmp_path / "key").write_text("sk-local\n")
    model = ["--model", str(folder)]
    for main, arguments, name in (
        (generate.main, [*model, *tokenizer[:2], "--prompt", "a", "--adapter", str(tmp_path)], "--adapter"),
        (serve.main, [*model, *tokenizer, "--adapter", f"one={tmp_path}"], "--adapter one"),
        (serve.main, [*model, *tokenizer, "--api-key-file", str(key), "--updates", str(tmp_path / "new")], "--updates"),
        (prepare.main, ["--clusters", "2", "--out", str(tokens), "--cluster-by", str(folder)], "--cluster-by"),
    ):
        capfd.readouterr()
        refused_by_command(main(arguments), *capfd.readouterr(), name, "a mixture of 2 models", "expected one model")


MISTAKES = {
    "one cluster": (["--clusters", "1"], ("--clusters 1", "2 or more")),
    "top": (["--top", "3"], ("--top 3", "from 1 to the 2 models")),
    "no top": (["--top", "0"], ("--top 0", "from 1")),
    "a name": (["--set", "run.name=x"], ("--set run.name", "--tokens and --out")),
    "a key": (["--set", "model.layer=2"], ("model.layer", "layers")),
    "islands": (["--set", "islands.folder=x", "--set", "islands.every=2"], ("islands.folder", "'x'", "share nothing")),
    "no tokens": ([], ("tokens", "index.json")),
}


@pytest.mark.parametrize(("more", "parts"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_one_sentence(tmp_path: Path, more: list[str], parts: tuple[str, ...], capfd):
    code = mixture.main(command(tmp_path, *more))
    out, errors = capfd.readouterr()
    refused_by_command(code, out, errors, *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
