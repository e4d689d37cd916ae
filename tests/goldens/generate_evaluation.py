"""Makes `evaluation/`: three small tasks, and what lm-evaluation-harness measures on them with its own `hf` backend.

Run from the repository's root where lm_eval, torch and transformers import, which needs no network:

    python -m tests.goldens.generate_evaluation

writes into `tests/goldens/evaluation/`: two tokenizers of 61 tokens, one of which begins each text with a token; the
examples of the tasks (`*.jsonl`) and their settings for jaxpar (`*.yaml`) and for lm_eval (`lm_eval/*.yaml`); and
`results.json`, by model and task: the metrics, and for each example the log-likelihoods or the text. Models are goldens
of this folder, in float32.
"""

import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "evaluation"
MODELS = {"llama": "marked", "gpt2": "plain"}
"""The tokenizer of each model."""
SPECIAL = ("<pad>", "<bos>", "<eos>")
LETTERS = " \nabcdefghijklmnopqrstuvwxyz.,?:0123456789"
MERGES = (
    "t h", "i n", "e r", "  t", "  a", "o u", " t h", "in g", "o n", "  s", "e s", "  c", "a t", "th e", "e n", "r e",
)  # fmt: skip
"""Pairs of pieces that a tokenizer joins; the last blank separates the two."""
WORDS = (
    "the", "cat", "sat", "on", "a", "mat", "and", "then", "ran", "out", "into", "warm", "rain", "because", "it",
    "heard", "nothing", "there", "again",
)  # fmt: skip
STEM, BOOTSTRAPPED = "evaluation_", "bits_per_byte_stderr,none"


def tokenizer(marked: bool) -> Any:
    """Letters and 16 pairs of them, without splitting at words, so that tokens cross their borders."""
    from tokenizers import Tokenizer, decoders, models, processors

    pairs = [(first, second) for first, _, second in (pair.rpartition(" ") for pair in MERGES)]
    pieces = [*SPECIAL, *LETTERS, *(first + second for first, second in pairs)]
    assert len(set(pieces)) == len(pieces) == 61, len(set(pieces))
    made = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, pairs))
    made.decoder = decoders.Fuse()
    made.add_special_tokens(list(SPECIAL))
    if marked:
        made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return made


def write_tokenizers() -> None:
    """The two folders of tokenizers."""
    for name in set(MODELS.values()):
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer(name == "marked").save(str(folder / "tokenizer.json"))
        kind = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        special = {"bos_token": "<bos>"} if name == "marked" else {}
        special |= {"eos_token": "<eos>", "pad_token": "<pad>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(kind | special, indent=1) + "\n")


def phrase(draw: random.Random, words: int) -> str:
    """Some words."""
    return " ".join(draw.choice(WORDS) for _ in range(words))


def write_lines(name: str, rows: list[dict[str, Any]]) -> None:
    """The examples of a task."""
    (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_examples() -> None:
    """Multiple choices and texts, shorter and longer than the models' contexts; questions without right answers."""
    draw = random.Random(20)
    choices = [
        {
            "context": phrase(draw, words) + " " * (words % 2) if words else "",
            "choices": [phrase(draw, 1 + draw.randrange(4)) for _ in range(2 + words % 3)],
            "answer": draw.randrange(2),
        }
        for words in (0, 1, 2, 3, 5, 8, 13, 21, 34, 40, 4, 6)
    ]
    write_lines("choice", choices)
    texts = [
        {"text": phrase(draw, words) + end} for words, end in ((1, "."), (9, ""), (30, "\n"), (80, "?"), (12, "."))
    ]
    write_lines("text", texts)
    questions = [{"prompt": f"{phrase(draw, words)}?\nanswer:", "answer": "?"} for words in (1, 2, 4, 7, 11, 20)]
    write_lines("question", questions)


SETTINGS = {
    "choice": "kind: multiple_choice\ndata: choice.jsonl\n",
    "text": "kind: perplexity\ndata: text.jsonl\n",
    "question": 'kind: generation\ndata: question.jsonl\ntokens: 12\nstop: ["\\n", "s"]\n',
}
HARNESS = {
    "choice": (
        "output_type: multiple_choice\ndoc_to_text: '{{context}}'\ndoc_to_choice: choices\ndoc_to_target: answer\n"
        "metric_list: [{metric: acc}, {metric: acc_norm}]\n"
    ),
    "text": (
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list: [{metric: bits_per_byte}]\n"
    ),
    "question": (
        "output_type: generate_until\ndoc_to_text: '{{prompt}}'\ndoc_to_target: '{{answer}}'\n"
        'generation_kwargs: {until: ["\\n", "s"], max_gen_toks: 12, do_sample: false}\n'
        "metric_list: [{metric: exact_match}]\nfilter_list: [{name: none, filter: [{function: take_first}]}]\n"
    ),
}


def write_settings() -> None:
    """The settings of each task, for jaxpar and for lm_eval, whose paths begin at the repository's root."""
    (FOLDER / "lm_eval").mkdir(exist_ok=True)
    root = Path(__file__).parents[2]
    for name, own in SETTINGS.items():
        (FOLDER / f"{name}.yaml").write_text(own)
        data = (FOLDER / f"{name}.jsonl").relative_to(root)
        common = (
            f"task: {STEM}{name}\ndataset_path: json\ndataset_kwargs: {{data_files: {data}}}\ntest_split: train\n"
            "metadata: {version: 1}\n"
        )
        (FOLDER / "lm_eval" / f"{name}.yaml").write_text(common + HARNESS[name])


def evaluated(model: str) -> dict[str, Any]:
    """The numbers that lm_eval measures with its own backend, by task."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    folder = str(Path(__file__).parent / model)
    tasks = TaskManager(include_path=str(FOLDER / "lm_eval"), include_defaults=False)
    results = {}
    for name in SETTINGS:
        # In texts its default scores the token that the tokenizer adds, after another one like it.
        adds = {"add_bos_token": False} if name == "text" else {}
        backend = HFLM(
            pretrained=folder, tokenizer=str(FOLDER / MODELS[model]), device="cpu", batch_size=4, dtype="float32",
            **adds,
        )  # fmt: skip
        found: Any = lm_eval.simple_evaluate(
            model=backend, tasks=[STEM + name], task_manager=tasks, bootstrap_iters=2, log_samples=True
        )
        results[name] = _results(name, found)
    return results


def _results(name: str, found: Any) -> dict[str, Any]:
    metrics = found["results"][STEM + name]
    # The error of bits per byte comes from a bootstrap, whose draws are not repeated.
    kept = {key: value for key, value in metrics.items() if isinstance(value, float) and key != BOOTSTRAPPED}
    samples = sorted(found["samples"][STEM + name], key=lambda sample: sample["doc_id"])
    return {"metrics": kept, "examples": [_sample(name, sample) for sample in samples]}


def _sample(name: str, sample: Any) -> Any:
    given = [response[0] for response in sample["resps"]]
    if name == "choice":
        return [float(total) for total, _ in given]
    return float(given[0]) if name == "text" else given[0]


def answer_some(results: dict[str, Any]) -> None:
    """Give half of the questions the answer that a model has, so that not all are wrong."""
    texts = [found["question"]["examples"] for found in results.values()]
    rows = [json.loads(line) for line in (FOLDER / "question.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        own = [text[number] for text in texts]
        row["answer"] = own[number % len(own)] if number % 3 and own[number % len(own)] else "nothing"
    write_lines("question", rows)


def main() -> None:
    """Write everything."""
    import torch
    import transformers

    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": tempfile.mkdtemp(),
        "DISABLE_MULTIPROC": "1",
    }
    torch.set_num_threads(1)
    write_tokenizers()
    write_examples()
    write_settings()
    answer_some({model: evaluated(model) for model in MODELS})
    results = {model: evaluated(model) for model in MODELS}
    import lm_eval

    versions = f"lm_eval {lm_eval.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    (FOLDER / "results.json").write_text(json.dumps({"made_with": versions} | results) + "\n")


if __name__ == "__main__":
    main()
